// Gradients of the two ends of the model: embedding, loss, router loss. Source: shared/spec/model.md 10.
// An empty cotangent means zero.
#pragma once

#include "reference/call.h"

namespace assay::reference {

/// d_table[v] = sum of dy[t] over the tokens t with ids[t] = v, in token order: ids [T], dy [T, C] -> [vocabulary, C],
/// width C. The padding row gets exactly zero. Throws InputError for an id outside [0, vocabulary).
template <class T>
Array<T> embed_backward(const Index& ids, std::int64_t vocabulary, std::int64_t width, const Array<T>& dy,
                        std::optional<std::int64_t> padding_row = std::nullopt);

/// d_logits[t] = (d_loss[t] + d_mean / count) (p - [label]) + d_lse[t] p with p = softmax(logits[t]); an ignored token
/// has only the last term. logits [T, V], labels [T], d_loss [T], d_mean [1], d_lse [T]. Throws InputError for a label
/// outside [0, V) that is not ignore_index, and if no token counts.
template <class T>
Array<T> cross_entropy_backward(const Array<T>& logits, const Index& labels, std::int64_t ignore_index,
                                const Array<T>& d_loss, const Array<T>& d_mean, const Array<T>& d_lse);

/// d_logits[r, e] = p_e (g_e - sum p g) with g_e = d_loss E f_e / rows; the fractions f_e are constants. logits
/// [rows, E], d_loss [1] -> [rows, E]. Throws as aux_loss does.
template <class T>
Array<T> aux_loss_backward(const Array<T>& logits, std::int64_t topk, const Array<T>& d_loss);

template <class T>
void add_head_backward_ops(OpTable<T>& table);

}  // namespace assay::reference
