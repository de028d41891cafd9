// Gradients of the router and of the sum over experts. Source: shared/spec/model.md 9.
// The choice of experts, the bias and the margins have no gradient. An empty cotangent means zero.
#pragma once

#include "reference/ops/router.h"

namespace assay::reference {

/// d_logits[t, e] = d_logits_direct[t, e], plus for the chosen experts ds_k s_k (1 - s_k) with ds_k = (scale dw_k -
/// sum_k dw_k w_k) / (sum_k s_k + sum_eps), or scale dw_k if norm_topk_prob is off. logits [T, E], experts and
/// d_weights [T, k]. Throws InputError for an expert outside [0, E).
template <class T>
Array<T> route_weights_backward(const Array<T>& logits, const Index& experts, const RouterRule& rule,
                                const Array<T>& d_weights, const Array<T>& d_logits_direct = Array<T>());

template <class T>
struct RouterGradient {
  Array<T> d_x;       ///< [T, C]
  Array<T> d_weight;  ///< [E, C]
};

/// Through logits = x weight^T.
template <class T>
RouterGradient<T> router_logits_backward(const Array<T>& x, const Array<T>& weight, const Array<T>& d_logits);

template <class T>
struct CombineGradient {
  Array<T> d_expert_out;  ///< [T, k, C]
  Array<T> d_weights;     ///< [T, k]
  Array<T> d_shared;      ///< [T, C], empty without a shared expert
};

/// d_expert_out[t, k] = w[t, k] dy[t]; d_weights[t, k] = <dy[t], expert_out[t, k]>; d_shared = dy.
template <class T>
CombineGradient<T> combine_backward(const Array<T>& expert_out, const Array<T>& weights, bool has_shared,
                                    const Array<T>& dy);

template <class T>
void add_router_backward_ops(OpTable<T>& table);

}  // namespace assay::reference
