// The whole model, forward. Source: shared/spec/model.md 3, 11, 12.
#pragma once

#include "cases/checkpoint.h"
#include "reference/model/inputs.h"
#include "reference/model/observer.h"
#include "reference/model/tape.h"

namespace assay::reference {

/// Conventions in which public implementations differ where the model's definition says nothing.
struct Conventions {
  /// A query that may see nothing (padding): false gives 0, true attends uniformly to its whole row (transformers).
  bool empty_row_attends_uniformly = false;
};

/// What the loss is made of besides the cross entropy.
struct LossOptions {
  double aux_loss_coef = 0.0;  ///< router auxiliary loss (model.md 10); 0: not computed
  double mtp_scale =
      0.0;  ///< mtp_loss_scaling_factor; each depth counts scale / depths (megatron.md 7); 0: no MTP loss
};

template <class T>
struct ForwardResult {
  Array<T> logits;                   ///< [B, L, vocab]
  Array<T> loss;                     ///< [1] mean cross entropy of the next token; size 0 without labels
  std::vector<Array<T>> mtp_losses;  ///< per depth, [1], unscaled, if mtp_scale is not 0
  Array<T> aux_loss;                 ///< [1], unscaled, if aux_loss_coef is not 0
  Var<T> total;                      ///< [1] what is differentiated; null without labels
};

/// Runs the trunk (and vision tower and MTP layers if the inputs and the config have them) from the embedding to the
/// loss, unsharded. Every stage is handed to the observer in order. Decisions that stay unclear throw Undecided (see
/// decide.h).
template <class T>
ForwardResult<T> forward(const Checkpoint& checkpoint, const ModelInputs& inputs, const Conventions& conventions,
                         Observer<T>& observer);

/// The same on a tape, with weights taken from the tape's parameters: `tape.backward(result.total, {1})` afterwards.
template <class T>
ForwardResult<T> forward(const Checkpoint& checkpoint, const ModelInputs& inputs, const Conventions& conventions,
                         const LossOptions& losses, Observer<T>& observer, Tape<T>& tape);

template <class T>
struct ModelGradients {
  ForwardResult<T> forward;
  std::map<std::string, Array<T>> gradients;  ///< by tensor name of the checkpoint
  std::vector<std::string> none;              ///< tensors of the checkpoint that get no gradient, by name
  std::int64_t saved_bytes = 0;
};

/// Forward and backward of the loss, with the checkpoint's tensors except those in `weights`. The embedding row of
/// pad_token_id gets no gradient; selections, the indexer and the router's choice bias get none and are listed in
/// `none`.
template <class T>
ModelGradients<T> gradients(const Checkpoint& checkpoint, const ModelInputs& inputs, const Conventions& conventions,
                            const LossOptions& losses, Observer<T>& observer,
                            const std::map<std::string, Array<T>>& weights = {});

}  // namespace assay::reference
