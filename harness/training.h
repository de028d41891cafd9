// A recorded training run, step by step against the reference's, and curve files in the public golden layout.
#pragma once

#include <filesystem>

#include "harness/gradients.h"
#include "harness/ties.h"
#include "reference/train/training.h"

namespace assay::harness {

struct TrainingRecord {
  reference::TrainingSettings settings;
  std::vector<std::vector<reference::ModelInputs>> steps;  ///< micro-batches of each step
  TensorFile file;
};

/// Reads a training record: tensors input_ids [steps * micro_batches, B, L] (labels are the ids), loss [steps],
/// grad_norm [steps] and final.<recorded parameter name>; metadata "optimizer": JSON {"name": "AdamW", "lr", "betas",
/// "eps", "weight_decay", "clip_grad_norm", "micro_batches", "steps"}. Throws InputError naming file and field.
TrainingRecord read_training_record(const std::filesystem::path& file);

/// Curves of a run under their public names.
struct Curves {
  std::map<std::string, std::vector<double>> values;  ///< "lm loss", "mtp_1 loss", "num-zeros", "grad-norm"
};

/// {"lm loss": {"start_step": 1, "end_step": N, "step_interval": 1, "values": {"1": ...}}, ...}: numbers read back to
/// the same bits.
std::string to_golden(const Curves& curves);

/// What a run leaves behind.
struct TrainingRun {
  std::map<std::string, std::vector<double>> tensors;  ///< loss, grad_norm, final.<name>: as in the record
  Curves curves;
  std::vector<Resolution> steps;  ///< choices of every step
};

/// The reference's own run in double. Exact ties are resolved as the recorded losses tell (harness/ties.h).
TrainingRun run_training(const Checkpoint& checkpoint, const TrainingRecord& record, const GradientNames& names,
                         const std::function<void(const std::string&)>& progress);

/// Runs the training in double and judges loss and gradient norm of every step and the final parameters against an
/// ensemble of runs in Monte Carlo arithmetic. `curves` receives the reference's own curves.
std::vector<Check> verify_training(const Checkpoint& checkpoint, const TrainingRecord& record,
                                   const GradientNames& names, const VerifySettings& settings, Curves& curves);

}  // namespace assay::harness
