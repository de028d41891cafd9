// Matrix products, the bulk of the work.
#pragma once

#include "reference/array.h"

namespace assay::reference {

/// y[m, n] = sum_k x[m, k] * w[n, k]: x [..., K] seen as [M, K], w [N, K] -> [..., N]. The product alone, no rounding
/// point. What is computed depends on shapes and values only, never on threads, processor or time.
///   double   products and sums rounded one by one in order of k
///   Sampled  dot, entry by entry
///   Bound    v as double; e bounds every summation order like dot
///   Real     each entry within 0.51 units in the last place of the exact sum at y's precision p, unless the sum is
///            below 2^-(15 p) of its largest term
///   Ball     encloses; where the operands are points its radius is at most that of dot, or 2^-bits of the entry,
///            or a few units of 2^-bits of what the operands' radii contribute
/// Real and Ball: matrices of at least kLeastOfReals or kLeastOfBalls rows, columns and terms are multiplied in fixed
/// point with the rows of both operands scaled by their largest exponent (linear_algebra_residues.h), exactly if the
/// values of every row fit into bits + 32 + log2 K bits. An entry that fixed point leaves too uncertain, an operand
/// with infinities or NaN, and smaller matrices are computed by Arb's dot.
template <class T>
Array<T> matmul_nt(const Array<T>& x, const Array<T>& w);

inline constexpr std::int64_t kLeastOfReals = 8, kLeastOfBalls = 16;

}  // namespace assay::reference
