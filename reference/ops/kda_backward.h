// Gradients of kda.h and of the fused op kda_attention: d_<input> for the cotangents of the outputs. An empty cotangent
// means zero. Sources: shared/spec/model.md 6 (backward of the recurrence and what follows it); megatron.md 2.5.
#pragma once

#include <optional>

#include "reference/call.h"

namespace assay::reference {

template <class T>
struct KdaConvGradients {
  Array<T> d_u;        ///< [T, Ch], rounded to the activation dtype
  Array<T> d_weight;   ///< [Ch, W]
  Array<T> d_initial;  ///< [W-1, Ch], rounded to the activation dtype; empty without `initial`
};

/// With s the sum before SiLU and ds = dy (sig + s sig (1 - sig)), sig = sigmoid(s):
///   d_u[t, c] = sum_j weight[c, j] ds[t + W-1-j, c] within the document,  d_weight[c, j] = sum_t ds[t, c] u[t-W+1+j,
///   c].
/// Operands as in kda_conv, dy [T, Ch].
template <class T>
KdaConvGradients<T> kda_conv_backward(const Array<T>& u, const Array<T>& weight, const Index& cu_seqlens,
                                      const Array<T>& initial, const Array<T>& dy);

template <class T>
struct KdaGateGradients {
  Array<T> d_f;        ///< [T, H, D], rounded to the activation dtype
  Array<T> d_A_log;    ///< [H], from the gradient of f before its rounding
  Array<T> d_dt_bias;  ///< [H*D], the token sum of the rounded d_f; empty without dt_bias
};

/// With x = f + dt_bias, a = exp(A_log), s = sigmoid(a x):
///   bounded    d_f = dg lower_bound s (1 - s) a,    d_A_log = sum over tokens and channels of d_f x
///   unbounded  d_f = -a dg sigmoid(x),              d_A_log = sum of dg g
template <class T>
KdaGateGradients<T> kda_gate_backward(const Array<T>& f, const Array<T>& A_log, const Array<T>& dt_bias,
                                      std::optional<double> lower_bound, const Array<T>& dg);

/// d_b = d_beta beta (1 - beta), rounded to the activation dtype.
template <class T>
Array<T> beta_backward(const Array<T>& b, const Array<T>& d_beta);

/// The operands of kda_attention (shapes in cases/ops/kda.cpp); dt_bias, initial_state and cu_seqlens may be empty.
template <class T>
struct KdaAttention {
  Array<T> q, k, v, gate, A_log, dt_bias, beta_logits, initial_state;
  Index cu_seqlens;
  std::optional<double> lower_bound, scale;
  double l2norm_eps = 1e-6;
  /// The normalised q and k, the log decay and the step size as an implementation stored them: used instead of the
  /// computed ones where not empty.
  Array<T> stored_q{}, stored_k{}, stored_g{}, stored_beta{};
  std::optional<std::int64_t> chunk{};  ///< tokens of a chunk; none: the recurrence
};

template <class T>
struct KdaAttentionCotangents {
  Array<T> d_o, d_final_state, d_g, d_beta;
};

template <class T>
struct KdaAttentionGradients {
  Array<T> d_q, d_k, d_v, d_gate, d_A_log, d_dt_bias, d_beta_logits, d_initial_state;
};

/// The composition: delta_rule_backward (or delta_rule_chunked_backward) on the normalised q and k, then l2norm_backward, kda_gate_backward and
/// beta_backward; the cotangents of the outputs g and beta are added to what the recurrence gives.
template <class T>
KdaAttentionGradients<T> kda_attention_backward(const KdaAttention<T>& inputs, const KdaAttentionCotangents<T>& d);

/// kda_conv.backward, kda_gate.backward, beta.backward, delta_rule.backward, delta_rule_chunked.backward,
/// kda_attention.backward.
template <class T>
void add_kda_backward_ops(OpTable<T>& table);

}  // namespace assay::reference
