// The triangular system of the chunked delta rule, forward and backward.
#pragma once

#include "reference/array.h"

namespace assay::reference {

/// (I + A)^-1 for A strictly lower, by forward substitution: row i is e_i - sum_{m<i} A[i][m] row m.
template <class T>
Array<T> inverse_of_unit_lower(const Array<T>& A) {
  const std::int64_t n = A.dim(0);
  Array<T> M({n, n});
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < i; ++j) M.at(i, j) = -dot(A.row(i, n) + j, 1, M.row(j, n) + j, n, i - j);
    M.at(i, i) = T(1.0);
  }
  return M;
}

}  // namespace assay::reference
