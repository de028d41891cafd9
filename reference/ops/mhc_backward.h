// Gradients of manifold-constrained hyper-connections. Sources: shared/spec/model.md 5 (backward), megatron.md 1.4 to
// 1.8. Shapes as in mhc.h; an empty cotangent means zero.
#pragma once

#include "reference/ops/mhc.h"

namespace assay::reference {

/// d_x = sum of dy over the streams, rounded once: dy [..., n, C] -> [..., C].
template <class T>
Array<T> stream_expand_backward(const Array<T>& dy, std::int64_t n);

/// Through all unrolled steps: logits [..., n, n], d_h_res [..., n, n], d_row_sums and d_column_sums [..., n].
/// Throws InputError for iterations < 1.
template <class T>
Array<T> sinkhorn_backward(const Array<T>& logits, std::int64_t iterations, double eps, const Array<T>& d_h_res,
                           const Array<T>& d_row_sums = Array<T>(), const Array<T>& d_column_sums = Array<T>());

/// Cotangents of the outputs of mhc_mapping.
template <class T>
struct MappingCotangent {
  Array<T> d_h_pre, d_h_post, d_h_res, d_inverse_rms, d_projection, d_mapping_logits;
};

template <class T>
struct MappingGradient {
  Array<T> d_x;       ///< [T, n, C]
  Array<T> d_weight;  ///< [n*n+2n, n*C]
  Array<T> d_alpha;   ///< [3]
  Array<T> d_bias;    ///< [n*n+2n]
};

/// With dh the gradient of the mapping logits: d_bias = sum_t dh, d_alpha = sum over a block of dh r P, dP = dh r
/// alpha, dr = sum dh alpha P, d_weight = dP^T X, d_x = dP W + dr r'(X) with r'(X) = -r^3 X / (nC) (eps inside the
/// root) or -r^2 X / (|X| sqrt(nC)), which is 0 at X = 0.
template <class T>
MappingGradient<T> mhc_mapping_backward(const Array<T>& x, const Array<T>& weight, const Array<T>& alpha,
                                        const Array<T>& bias, const MappingOptions& options,
                                        const MappingCotangent<T>& cotangent);

template <class T>
struct AggregateGradient {
  Array<T> d_x;      ///< [T, n, C]
  Array<T> d_h_pre;  ///< [T, n]
};

/// d_x[j] = h_pre[j] dy, d_h_pre[j] = <x[j], dy>. `in_fp32` false: each product of d_h_pre and its sum are rounded to
/// the activation dtype.
template <class T>
AggregateGradient<T> mhc_aggregate_backward(const Array<T>& x, const Array<T>& h_pre, const Array<T>& dy,
                                            bool in_fp32 = true);

template <class T>
struct MixGradient {
  Array<T> d_residual;     ///< [T, n, C]
  Array<T> d_branch;       ///< [T, C]
  Array<T> d_h_post;       ///< [T, n]
  Array<T> d_h_res;        ///< [T, n, n]
  Array<T> d_branch_bias;  ///< [C], empty without a bias
};

/// d_residual[i] = sum_j h_res[i, j] dy[j]; d_branch = sum_j h_post[j] dy[j], and the sum of that over the tokens for
/// the bias; d_h_post[j] = <dy[j], branch + bias>; d_h_res[i, j] = <residual[i], dy[j]>. `in_fp32` false: elementwise
/// products and every result are rounded to the activation dtype.
template <class T>
MixGradient<T> mhc_mix_backward(const Array<T>& residual, const Array<T>& branch, const Array<T>& h_post,
                                const Array<T>& h_res, const Array<T>& branch_bias, const Array<T>& dy,
                                bool in_fp32 = true);

/// d_x[i] = dy / n: dy [T, C] -> [T, n, C].
template <class T>
Array<T> contract_mean_backward(const Array<T>& dy, std::int64_t n);

template <class T>
struct ContractGradient {
  Array<T> d_x;      ///< [T, n, C]
  Array<T> d_fn;     ///< [n, n*C]
  Array<T> d_base;   ///< [n]
  Array<T> d_scale;  ///< [1]
};

/// With dz_j = <dy, x_j> s (1 - s): d_base = sum_t dz, d_scale = sum dz r P, dP = dz scale r, and d_x = p_j dy plus
/// what the projection and its norm give (as in mhc_mapping_backward).
template <class T>
ContractGradient<T> contract_learned_backward(const Array<T>& x, const Array<T>& fn, const Array<T>& base,
                                              const Array<T>& scale, double eps, const Array<T>& dy);

template <class T>
void add_mhc_backward_ops(OpTable<T>& table);

}  // namespace assay::reference
