// Proof of the gradients: every backward against central differences of its forward, both in high precision.
//
// With f(x) = sum(cotangent * output) the difference (f(x + h) - f(x - h)) / 2h misses f'(x) by h^2 f'''/6. With h =
// 2^-kStepBits that is 2^-180 times the third derivative, far below 1e-25; the cancellation costs kStepBits of the
// working precision, which is raised by that much.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cases/checkpoint.h"
#include "reference/model/model.h"

namespace assay::harness {

inline constexpr int kStepBits = 90;

struct ProvedGradient {
  std::string name;           ///< "<op> case <i>: d_<input>", or a parameter
  std::int64_t elements = 0;  ///< elements differenced one by one; 1 for a direction
  double deviation = 0.0;     ///< largest deviation over the largest gradient
  bool passed = false;
  std::string reason;  ///< why not
};

struct ProofSettings {
  int bits = 256;          ///< precision of the gradients; the differences use kStepBits more
  double allowed = 1e-20;  ///< relative deviation
  std::uint64_t seed = 1;
  std::string filter = "*";
  reference::LossOptions losses;  ///< of a model: what its loss is made of
  std::function<void(const std::string&)> progress = [](const std::string&) {};
};

/// Proves ops on the inputs of a file: {"assay_proof": 1, "ops": {"<op>": [{"attributes": {...}, "inputs": {operand:
/// binding}}]}} where a binding is {"shape": [...], "scale": s, "offset": o} (seeded normal numbers), or {"values":
/// nested numbers} (integers for index operands). `op` empty: all ops of the file. Throws InputError for an op without
/// backward or a malformed file.
std::vector<ProvedGradient> prove_ops(const std::filesystem::path& file, const std::string& op,
                                      const ProofSettings& settings);

/// Proves the gradient of every parameter of a model on given inputs, along a seeded direction of +-1 per parameter.
std::vector<ProvedGradient> prove_model(const Checkpoint& checkpoint, const reference::ModelInputs& inputs,
                                        const reference::Conventions& conventions, const ProofSettings& settings);

}  // namespace assay::harness
