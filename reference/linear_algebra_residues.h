// Matrix products of multiprecision numbers in fixed point: the rows of both operands are scaled to integers,
// multiplied modulo primes of 23 bits in exact double arithmetic (linear_algebra_kernel.h), and put together again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "reference/scalar.h"

namespace assay::reference {

/// A finite number as limbs: +-0.limbs * 2^exponent, the first bit of the last limb set; size 0 is zero.
struct Mantissa {
  const mp_limb_t* limbs = nullptr;
  mp_size_t size = 0;
  std::int64_t exponent = 0;
  bool negative = false;
  bool usable = true;  ///< false for infinities, NaN and exponents of more than 40 bits
};
Mantissa mantissa(const Real& x);
Mantissa mantissa(const Ball& x);  ///< of the midpoint

/// A matrix [rows, inner] of T as integers: |x[i, k]| < 2^exponents[i], and x[i, k] * 2^(width - exponents[i]) is
/// truncated to an integer.
template <class T>
struct FixedPoint {
  const T* data;
  std::int64_t rows, inner;
  std::vector<std::int64_t> exponents;
  int width = 1;       ///< the bits of the widest row, at most `most`
  bool exact = true;   ///< no row was wider: nothing is truncated
  bool usable = true;  ///< every number is

  FixedPoint(const T* values, std::int64_t row_count, std::int64_t row_size, int most);
};

/// One entry of a product: +-limbs * 2^exponent, off by at most 2^error_exponent unless exact.
struct FixedSum {
  const mp_limb_t* limbs;
  mp_size_t size;  ///< 0: zero
  bool negative;
  std::int64_t exponent;
  bool exact;
  std::int64_t error_exponent;
};

/// The width of fixed point numbers that gives `bits` bits to sums of `inner` products.
int fixed_point_width(int bits, std::int64_t inner);
/// False if the product needs more primes than there are.
bool residues_suffice(int left_width, int right_width, std::int64_t inner);

/// Calls store(i, j, sum) for sum_k x[i, k] * w[j, k], for every i and j once, from several threads. The error is at
/// most 3 * 2^(ex[i] + ew[j] - bits - 32) for operands of fixed_point_width(bits, inner).
template <class T>
void residue_product(const FixedPoint<T>& x, const FixedPoint<T>& w, int bits,
                     const std::function<void(std::int64_t, std::int64_t, const FixedSum&)>& store);

}  // namespace assay::reference
