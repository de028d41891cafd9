// Gradients of the gated delta rule in two formulations. Sources: shared/spec/model.md 6 (backward of the recurrence);
// megatron.md 2.5 steps 0 to 5 (chunked form).
#pragma once

#include <optional>

#include "reference/ops/delta_rule.h"

namespace assay::reference {

template <class T>
struct DeltaRuleGradients {
  Array<T> d_q;              ///< [T, H, K], summed over the value heads of a group, rounded to the activation dtype
  Array<T> d_k;              ///< [T, H, K], likewise
  Array<T> d_v;              ///< [T, Hv, V], rounded to the activation dtype
  Array<T> d_g;              ///< [T, Hv, K]
  Array<T> d_beta;           ///< [T, Hv]
  Array<T> d_initial_state;  ///< [S, Hv, K, V], empty without initial states
};

/// The adjoint of the recurrence, last token first. Operands as in delta_rule; cotangents d_o [T, Hv, V] and
/// d_final_state [S, Hv, K, V], empty means zero. Throws as delta_rule, and InputError for a cotangent of another
/// shape. Ball and Bound carry a bound on the 2-norm of the errors of the state and of its adjoint (see the source
/// file).
template <class T>
DeltaRuleGradients<T> delta_rule_backward(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Array<T>& g,
                                          const Array<T>& beta, const Array<T>& initial_state, const Index& cu_seqlens,
                                          std::optional<double> scale, const Array<T>& d_o,
                                          const Array<T>& d_final_state);

/// The same gradients by chunks of `chunk` tokens. Throws as delta_rule_backward, and for chunk < 1. Without `store_qk`
/// d_q and d_k are handed on unrounded (to the norms' backward: megatron.md 2.5); groups must then be of one head.
template <class T>
DeltaRuleGradients<T> delta_rule_chunked_backward(const Array<T>& q, const Array<T>& k, const Array<T>& v,
                                                  const Array<T>& g, const Array<T>& beta,
                                                  const Array<T>& initial_state, const Index& cu_seqlens,
                                                  std::optional<double> scale, std::int64_t chunk, const Array<T>& d_o,
                                                  const Array<T>& d_final_state, bool store_qk = true);

/// Sums [T, Hv, K] over the value heads of each group of `group` in order, rounded to the activation dtype ->
/// [T, Hv / group, K].
template <class T>
Array<T> sum_over_groups(const Array<T>& x, std::int64_t group);

}  // namespace assay::reference
