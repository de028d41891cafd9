// The optional token-level loss that trains the indexer to imitate the attention. Source: shared/spec/megatron.md 3.6.
#pragma once

#include <cstdint>
#include <optional>

#include "reference/call.h"

namespace assay::reference {

template <class T>
struct IndexerLoss {
  Array<T> loss;      ///< [1] = coefficient / rows * sum of row_loss
  Array<T> row_loss;  ///< [T] = sum_s target (ln max(target, 1e-10) - ln softmax(scores)), 0 for a row with no token
};

/// target[t] = sum over heads of attention[t], divided by its sum over the visible tokens (at least 1e-10). scores
/// [T, S]; attention [T, H, S], probabilities (H = 1 if they are summed already); visible [T, S], not 0 where the row
/// sees the token, everything if empty. Softmax and target leave out what is not visible. `rows` divides the sum: 1
/// for a loss per token, the rows with a visible token if absent. Throws InputError for rows < 1.
template <class T>
IndexerLoss<T> indexer_loss(const Array<T>& scores, const Array<T>& attention, const Index& visible, double coefficient,
                            std::optional<std::int64_t> rows);

/// d_scores [T, S] = (softmax(scores) sum(target) - target) (d_loss coefficient / rows + d_row_loss), 0 where not
/// visible; f32, no rounding point. The attention is detached. d_loss [1] and d_row_loss [T] may be empty, which means
/// zero.
template <class T>
Array<T> indexer_loss_backward(const Array<T>& scores, const Array<T>& attention, const Index& visible,
                               double coefficient, std::optional<std::int64_t> rows, const Array<T>& d_loss,
                               const Array<T>& d_row_loss);

/// "indexer_loss" and "indexer_loss.backward".
template <class T>
void add_indexer_loss_ops(OpTable<T>& table);

}  // namespace assay::reference
