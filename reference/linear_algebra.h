// Matrix products, the bulk of the work.
#pragma once

#include "reference/array.h"

namespace assay::reference {

/// y[m, n] = sum_k x[m, k] * w[n, k]: x [..., K] seen as [M, K], w [N, K] -> [..., N]. The product alone, no rounding
/// point. double and Bound: plain sums in order of k. Ball: Arb's dot. Real: Arb's dot on exact points 32 bits wider,
/// then rounded.
template <class T>
Array<T> matmul_nt(const Array<T>& x, const Array<T>& w);

}  // namespace assay::reference
