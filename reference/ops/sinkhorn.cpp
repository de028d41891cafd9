// Sinkhorn, evaluated through its scalings.
//
// Every iterate is C_ij = B_ij x_i y_j with B = softmax + eps fixed: a column step C_ij / (sum_i C_ij + eps) replaces
// y_j by 1 / (sum_i B_ij x_i + eps / y_j), a row step replaces x_i by 1 / (sum_j B_ij y_j + eps / x_i). This is the
// same matrix, step by step, but errors of balls add up linearly (each new scaling is as uncertain as the worst of what
// it averages) instead of doubling at every division of the matrix by its own sums: 40 steps cost 6 bits, not 40.
//
// For Bound, round_compute(B) at each step stands for the division's rounding of each element in an implementation that
// divides the matrix: its iterate is B'_ij x'_i y'_j with B' the product of those roundings with B.
#include <algorithm>

#include "reference/ops/mhc.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

template <class T>
void softmax_plus_eps(const T* logits, std::int64_t n, double eps, T* out) {
  double shift = midpoint(logits[0]);
  for (std::int64_t j = 1; j < n; ++j) shift = std::max(shift, midpoint(logits[j]));
  std::vector<T> ones(static_cast<std::size_t>(n), T(1.0));
  for (std::int64_t j = 0; j < n; ++j) out[j] = exp(logits[j] - T(shift));
  const T sum = dot(out, 1, ones.data(), 1, n);
  for (std::int64_t j = 0; j < n; ++j) out[j] = out[j] / sum + constant<T>(eps);
}

/// new_scale[i] = 1 / (sum_j b[i, j] other[j] + eps / old_scale[i]); strides choose rows or columns.
template <class T>
void rescale(const std::vector<T>& b, std::int64_t n, std::int64_t outer, std::int64_t inner,
             const std::vector<T>& other, double eps, std::vector<T>& scale) {
  for (std::int64_t i = 0; i < n; ++i) {
    T& s = scale[static_cast<std::size_t>(i)];
    s = T(1.0) / (dot(b.data() + i * outer, inner, other.data(), 1, n) + constant<T>(eps) / s);
  }
}

template <class T>
void sinkhorn_matrix(const T* logits, std::int64_t n, std::int64_t iterations, double eps, T* out) {
  const std::size_t count = static_cast<std::size_t>(n);
  std::vector<T> b(count * count), x(count, T(1.0)), y(count, T(1.0));
  for (std::int64_t i = 0; i < n; ++i) softmax_plus_eps(logits + i * n, n, eps, b.data() + i * n);
  const auto stored = [&] {
    for (T& value : b) value = round_at(point("sinkhorn/iterate"), value);
  };
  rescale(b, n, 1, n, x, eps, y);
  stored();
  for (std::int64_t step = 1; step < iterations; ++step) {
    rescale(b, n, n, 1, y, eps, x);
    stored();
    rescale(b, n, 1, n, x, eps, y);
    stored();
  }
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = 0; j < count; ++j) out[i * count + j] = b[i * count + j] * x[i] * y[j];
}

}  // namespace

template <class T>
Sinkhorn<T> sinkhorn(const Array<T>& logits, std::int64_t iterations, double eps) {
  if (iterations < 1) {
    throw InputError("sinkhorn: attribute iterations", std::to_string(iterations), "at least 1 is needed");
  }
  const std::int64_t n = logits.dim(-1);
  const std::int64_t matrices = n == 0 ? 0 : logits.size() / (n * n);
  const Shape sums(logits.shape.begin(), logits.shape.end() - 1);
  Sinkhorn<T> result{Array<T>(logits.shape), Array<T>(sums), Array<T>(sums)};
  const std::vector<T> ones(static_cast<std::size_t>(n), T(1.0));
  parallel_for(matrices, [&](std::int64_t m) {
    T* h = result.h_res.row(m, n * n);
    sinkhorn_matrix(logits.row(m, n * n), n, iterations, eps, h);
    for (std::int64_t i = 0; i < n; ++i) {
      result.row_sums[m * n + i] = dot(h + i * n, 1, ones.data(), 1, n);
      result.column_sums[m * n + i] = dot(h + i, n, ones.data(), 1, n);
    }
  });
  return result;
}

#define ASSAY_INSTANTIATE(T) template Sinkhorn<T> sinkhorn(const Array<T>&, std::int64_t, double);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
