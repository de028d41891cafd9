// The whole model, forward. Source: shared/spec/model.md 3, 11, 12.
#pragma once

#include "cases/checkpoint.h"
#include "reference/model/inputs.h"
#include "reference/model/observer.h"

namespace assay::reference {

/// Conventions in which public implementations differ where the model's definition says nothing.
struct Conventions {
  /// A query that may see nothing (padding): false gives 0, true attends uniformly to its whole row (transformers).
  bool empty_row_attends_uniformly = false;
};

template <class T>
struct ForwardResult {
  Array<T> logits;  ///< [B, L, vocab]
  Array<T> loss;    ///< [1], mean cross entropy of the next token; size 0 without labels
};

/// Runs the trunk (and vision tower and MTP layers if the inputs and the config have them) from the embedding to the
/// loss, unsharded. Every stage is handed to the observer in order. Decisions that stay unclear throw Undecided (see
/// decide.h).
template <class T>
ForwardResult<T> forward(const Checkpoint& checkpoint, const ModelInputs& inputs, const Conventions& conventions,
                         Observer<T>& observer);

}  // namespace assay::reference
