// The triangular system of the chunked delta rule, forward and backward.
#pragma once

#include <algorithm>

#include "reference/array.h"

namespace assay::reference {

/// By 16 x 16 blocks (megatron.md 2.4): forward substitution on the diagonal blocks, merged by
///   M_IJ = -M_II sum_{J<=L<I} A_IL M_LJ
/// whose products round their operands.
template <class T>
Array<T> blockwise_inverse_of_unit_lower(const Array<T>& A) {
  constexpr std::int64_t kBlock = 16;
  const std::int64_t n = A.dim(0);
  Array<T> M({n, n}), sums({n, n});
  const auto rounded = [n](const Array<T>& x) {
    Array<T> y({n, n});
    for (std::int64_t i = 0; i < n * n; ++i) y[i] = round_at(point("delta_rule_chunked/inverse_factors"), x[i]);
    return y;
  };
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t first = i / kBlock * kBlock;
    for (std::int64_t j = first; j < i; ++j) M.at(i, j) = -dot(A.row(i, n) + j, 1, M.row(j, n) + j, n, i - j);
    M.at(i, i) = T(1.0);
  }
  const Array<T> factors = rounded(A);
  for (std::int64_t begin = kBlock; begin < n; begin += kBlock) {  // M_IJ of block row I for all J < I
    const std::int64_t end = std::min(begin + kBlock, n);
    const Array<T> above = rounded(M);
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = 0; j < begin; ++j)
        sums.at(i, j) = dot(factors.row(i, n) + j / kBlock * kBlock, 1, above.row(j / kBlock * kBlock, n) + j, n,
                            begin - j / kBlock * kBlock);
    }
    const Array<T> right = rounded(sums);
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = 0; j < begin; ++j)
        M.at(i, j) = -dot(above.row(i, n) + begin, 1, right.row(begin, n) + j, n, i - begin + 1);
    }
  }
  return M;
}

/// (I + A)^-1 for A strictly lower, by forward substitution: row i is e_i - sum_{m<i} A[i][m] row m. Blockwise where a
/// contract rounds the factors of its products.
template <class T>
Array<T> inverse_of_unit_lower(const Array<T>& A) {
  if (rounds_at<T>(point("delta_rule_chunked/inverse_factors"))) return blockwise_inverse_of_unit_lower(A);
  const std::int64_t n = A.dim(0);
  Array<T> M({n, n});
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < i; ++j) M.at(i, j) = -dot(A.row(i, n) + j, 1, M.row(j, n) + j, n, i - j);
    M.at(i, i) = T(1.0);
  }
  return M;
}

}  // namespace assay::reference
