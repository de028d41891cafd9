// The accumulator of an FP8 tensor core, as measured on Hopper: 32 products at a time are aligned with the running sum
// to the largest exponent among them and cut, and so is their sum. `fraction_bits` counts the bits kept behind the
// leading one: 13 on sm_90 ("14 bits"), 21 for an accumulator of 22 bits. Source: cases/public_reports.md R86, T65.
#pragma once

#include <cstdint>
#include <optional>

#include "reference/scalar.h"

namespace assay::reference {

/// The sum of x[i] * w[i] as such an accumulator adds it, cut towards zero. x and w are numbers of an FP8 format, whose
/// products a double holds exactly; the exponent of a product is the sum of its factors' exponents.
double tensor_core_sum(const double* x, const double* w, std::int64_t n, std::int64_t fraction_bits);

/// The dot of one K block in the declared accumulator: with `fraction_bits`, Bound permits its error and Sampled
/// executes it; double, Real and Ball are exact between rounding points.
template <class T>
T accumulated_dot(const T* x, const T* w, std::int64_t n, std::optional<std::int64_t> fraction_bits);

}  // namespace assay::reference
