// The two ends of the model: embedding, loss, router loss, MTP's shift. Sources: shared/spec/model.md 3, 10, 11;
// megatron.md 7.
#pragma once

#include "reference/call.h"

namespace assay::reference {

/// Rows of the table [V, C], exact: ids [T] -> [T, C]. Throws InputError for an id outside [0, V).
template <class T>
Array<T> embed(const Index& ids, const Array<T>& table);

template <class T>
struct CrossEntropy {
  Array<T> loss;  ///< [T], 0 where the label is ignored
  Array<T> lse;   ///< [T], log sum exp(logits)
  Array<T> mean;  ///< [1], over the tokens that count
};

/// loss = log sum exp(logits) - logits[label]: logits [T, V], labels [T], each in [0, V) or ignore_index. The labels
/// are already those of each row's prediction (see next_token_labels). Throws InputError for any other label and if no
/// token counts.
template <class T>
CrossEntropy<T> cross_entropy(const Array<T>& logits, const Index& labels, std::int64_t ignore_index);

/// Label of each position of one sequence: the token after it; the last has none (`ignore_index`). [L] -> [L].
Index next_token_labels(const Index& sequence, std::int64_t ignore_index = -100);

/// E sum_e f_e P_e with p = softmax(logits): f_e the fraction of rows whose top-k of p hold e, P_e the mean of p_e.
/// logits [rows, E], the rows of all layers and counted tokens -> [1]. Throws InputError for topk outside [1, E] and
/// for no rows; Undecided if a choice depends on the width of balls.
template <class T>
Array<T> aux_loss(const Array<T>& logits, std::int64_t topk);

/// ids moved left by `by` within each document, `fill` at the end of each. cu_seqlens [S] from 0 to T; empty: one
/// document. [T] -> [T]. Throws InputError for bad boundaries and a negative `by`.
Index mtp_shift(const Index& ids, const Index& cu_seqlens, std::int64_t by, std::int64_t fill);

template <class T>
void add_head_ops(OpTable<T>& table);

}  // namespace assay::reference
