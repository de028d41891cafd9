// Weights of a checkpoint in the reference's scalars, read when they are needed.
#pragma once

#include <string>

#include "cases/checkpoint.h"
#include "reference/array.h"

namespace assay::reference {

/// The tensors below one name prefix ("model.language_model.layers.3.").
class Weights {
 public:
  Weights(const Checkpoint& checkpoint, std::string prefix) : checkpoint_(checkpoint), prefix_(std::move(prefix)) {}

  /// The exact values under `name`; block FP8 (a companion `<name>_scale_inv`) is dequantised exactly: code * scale.
  /// Throws InputError naming the checkpoint and the tensor if it is missing.
  template <class T>
  Array<T> get(const std::string& name) const;

  /// The tensor's full name.
  std::string full_name(const std::string& name) const { return prefix_ + name; }
  bool has(const std::string& name) const { return checkpoint_.file.has(prefix_ + name); }
  Weights below(const std::string& more) const { return {checkpoint_, prefix_ + more}; }
  const ModelConfig& config() const { return checkpoint_.config; }

 private:
  const Checkpoint& checkpoint_;
  std::string prefix_;
};

}  // namespace assay::reference
