// The gated delta rule of KDA in two formulations. Sources: shared/spec/model.md 6.6 (recurrence) and "Chunked form";
// megatron.md 2.4.
//
//   S' = diag(exp(g_t)) S_{t-1}                      decay first
//   S_t = S' + beta_t k_t (v_t - S'^T k_t)^T         the delta uses the memory after the decay
//   o_t = scale * S_t^T q_t                          the query reads the updated state
#pragma once

#include <optional>

#include "reference/ops/documents.h"

namespace assay::reference {

template <class T>
struct DeltaRule {
  Array<T> o;            ///< [T, Hv, V], one rounding to the activation dtype
  Array<T> final_state;  ///< [S, Hv, K, V], after each of the S documents
};

/// The recurrence, token by token. q, k [T, H, K], v [T, Hv, V], g [T, Hv, K] log decay, beta [T, Hv], initial_state
/// [S, Hv, K, V] or empty (zero), cu_seqlens as in documents.h (empty: one document), scale: nullopt means K^-1/2.
/// Hv is a multiple of H: value head h uses query and key head h / (Hv / H). Throws InputError naming the operand if it
/// is not, or if the number of initial states is not the number of documents.
/// Ball and Bound carry a bound on the 2-norm of the state's error (see the source file): radii grow with the sum of
/// the local errors, not exponentially with the number of tokens.
template <class T>
DeltaRule<T> delta_rule(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Array<T>& g,
                        const Array<T>& beta, const Array<T>& initial_state, const Index& cu_seqlens,
                        std::optional<double> scale);

/// The same function by chunks of `chunk` tokens (a document's last chunk may be shorter; no padding). Algebraically
/// equal to delta_rule; Bound propagates the roundings of this form. Throws as delta_rule, and for chunk < 1.
template <class T>
DeltaRule<T> delta_rule_chunked(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Array<T>& g,
                                const Array<T>& beta, const Array<T>& initial_state, const Index& cu_seqlens,
                                std::optional<double> scale, std::int64_t chunk);

/// The sizes of a delta rule, checked as delta_rule says.
struct DeltaRuleSizes {
  std::int64_t tokens, value_heads, group, key_dim, value_dim;  ///< group = Hv / H
  std::vector<Document> documents;
};

DeltaRuleSizes delta_rule_sizes(const Shape& q, const Shape& v, const Shape& initial_state, const Index& cu_seqlens);

/// The factor of the query: a constant of the formula.
template <class T>
T query_scale(std::optional<double> scale, std::int64_t key_dim) {
  return scale ? constant<T>(*scale) : inverse_root<T>(key_dim);
}

}  // namespace assay::reference
