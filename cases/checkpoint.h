// A Hugging Face checkpoint folder: config.json and the safetensors it should hold.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cases/config.h"
#include "cases/safetensors.h"

namespace assay {

/// One tensor the model needs, under its public name. Source: shared/spec/model.md section 2.
struct ExpectedTensor {
  std::string name;
  Shape shape;
  bool keep_f32;    ///< must be stored as F32 (hc base and scale, A_log, dt_bias, e_score_correction_bias)
  bool may_be_fp8;  ///< may be F8_E4M3 with a companion `<name>_scale_inv` (name ends in .weight -> .weight_scale_inv)
};

/// Every tensor of the model described by the config, trunk, MTP layers (if num_nextn_predict_layers > 0) and vision
/// tower.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

struct TensorFault {
  std::string name;
  std::string fault;   ///< "missing", "unexpected", "wrong dtype", "wrong shape"
  std::string detail;  ///< what was found and what is allowed
};

struct Checkpoint {
  std::filesystem::path folder;
  ModelConfig config;
  TensorFile file;
};

/// Opens folder/config.json and its tensors. Does not judge the inventory.
Checkpoint open_checkpoint(const std::filesystem::path& folder);

/// Compares the file with the expectation, in name order. HF ignores layers.45.* and shared_head.*: the MTP layer's
/// tensors are expected only when the config says num_nextn_predict_layers > 0; vision tensors only when it has a
/// vision_config.
std::vector<TensorFault> audit(const Checkpoint& checkpoint);

}  // namespace assay
