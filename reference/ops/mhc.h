// Manifold-constrained hyper-connections. Sources: shared/spec/model.md 5, megatron.md 1.3 to 1.8.
// Streams X are [T, n, C]; row blocks of the mapping are pre (n), post (n), res (n*n, [source, destination] row by
// row).
#pragma once

#include "reference/call.h"

namespace assay::reference {

struct MappingOptions {
  double norm_eps = 1e-5;
  bool norm_eps_inside_sqrt = true;  ///< false: r = 1 / (|x| / sqrt(nC) + eps)
  double pre_eps = 1e-6;             ///< added to h_pre after the sigmoid; h_post gets none
  double sinkhorn_eps = 1e-6;
  std::int64_t iterations = 20;
};

template <class T>
struct Mapping {
  Array<T> h_pre, h_post;   ///< [T, n]
  Array<T> h_res;           ///< [T, n, n], [source, destination]
  Array<T> inverse_rms;     ///< [T, 1]
  Array<T> projection;      ///< [T, n*n + 2n], of the raw streams
  Array<T> mapping_logits;  ///< [T, n*n + 2n]
};

template <class T>
struct Sinkhorn {
  Array<T> h_res;                  ///< [..., n, n]
  Array<T> row_sums, column_sums;  ///< [..., n], over the last and the last but one index
};

/// y[..., i, :] = x for i < n: exact copies.
template <class T>
Array<T> stream_expand(const Array<T>& x, std::int64_t n);

/// logits = r * (W x) * alpha + bias; h_pre = sigmoid + pre_eps, h_post = 2 sigmoid, h_res = Sinkhorn.
/// weight [n*n+2n, n*C], alpha [3] (pre, post, res), bias [n*n+2n].
template <class T>
Mapping<T> mhc_mapping(const Array<T>& x, const Array<T>& weight, const Array<T>& alpha, const Array<T>& bias,
                       const MappingOptions& options);

/// Softmax over the last index plus eps, a column step, then iterations-1 times a row and a column step; a step divides
/// by (sum + eps). Throws InputError for iterations < 1.
template <class T>
Sinkhorn<T> sinkhorn(const Array<T>& logits, std::int64_t iterations, double eps);

/// y[t, c] = sum_j h_pre[t, j] x[t, j, c]. `in_fp32` false: each product is rounded to the activation dtype first.
template <class T>
Array<T> mhc_aggregate(const Array<T>& x, const Array<T>& h_pre, bool in_fp32 = true);

/// y[t, j] = h_post[t, j] (branch + branch_bias) + sum_i h_res[t, i, j] residual[t, i]: h_res transposed. branch_bias
/// [C] may be empty. `in_fp32` false: the expanded branch, its bias and the mixed residual are each rounded before the
/// sum.
template <class T>
Array<T> mhc_mix(const Array<T>& residual, const Array<T>& branch, const Array<T>& h_post, const Array<T>& h_res,
                 const Array<T>& branch_bias, bool in_fp32 = true);

/// Mean over the streams. `in_fp32` false: the sum is rounded to the activation dtype before the division.
template <class T>
Array<T> contract_mean(const Array<T>& x, bool in_fp32 = true);

/// p_j = sigmoid((x . fn_j) rsqrt(mean(x^2) + eps) scale + base_j) + eps; y = sum_j p_j x_j. fn [n, n*C], base [n],
/// scale [1].
template <class T>
Array<T> contract_learned(const Array<T>& x, const Array<T>& fn, const Array<T>& base, const Array<T>& scale,
                          double eps);

template <class T>
void add_mhc_ops(OpTable<T>& table);

}  // namespace assay::reference
