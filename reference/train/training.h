// A training run of the reference: micro-batches, clipping, AdamW on master weights kept in the scalar.
#pragma once

#include <functional>

#include "reference/model/model.h"
#include "reference/train/optimizer.h"

namespace assay::reference {

struct TrainingSettings {
  AdamWSettings adamw;  ///< lr is taken from the schedule
  Schedule schedule;
  double clip_grad_norm = 0.0;  ///< 0: no clipping
  LossOptions losses;
};

template <class T>
struct StepReport {
  T loss;                     ///< mean over the micro-batches
  std::vector<T> mtp_losses;  ///< per depth, the same
  T grad_norm;                ///< before clipping
  std::int64_t num_zeros = 0;
  double lr = 0.0;
};

template <class T>
class Training {
 public:
  /// Master weights start as the exact values of the checkpoint's tensors.
  Training(const Checkpoint& checkpoint, Conventions conventions, TrainingSettings settings)
      : checkpoint_(checkpoint), conventions_(conventions), settings_(std::move(settings)) {}

  /// The observer of a micro-batch, by its number.
  using Observers = std::function<Observer<T>&(std::size_t micro_batch)>;

  /// One optimizer step over the micro-batches: gradients are averaged in their order. The gradient of an expert
  /// that no token chose is zero, as in one tensor of all experts: it decays and moves on with its moments. Any other
  /// parameter without gradient (indexer, choice bias, a tower without images) stays as it is.
  StepReport<T> step(const std::vector<ModelInputs>& micro_batches, const Observers& observers = {});

  /// Master weights of every parameter that was ever updated.
  const Tensors<T>& weights() const { return weights_; }

 private:
  const Checkpoint& checkpoint_;
  Conventions conventions_;
  TrainingSettings settings_;
  std::int64_t steps_ = 0;
  Tensors<T> weights_;
  std::map<std::string, Moments<T>> moments_;
};

}  // namespace assay::reference
