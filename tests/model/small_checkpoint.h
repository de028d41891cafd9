// A small model with seeded weights: four layers (KDA, DSA, DSA that shares its selection, KDA) of width 8.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include <nlohmann/json.hpp>

#include "cases/checkpoint.h"
#include "reference/model/inputs.h"

namespace assay::reference {

inline nlohmann::json small_config() {
  return nlohmann::json::parse(R"({
    "model_type": "glm5_next", "tie_word_embeddings": false, "image_token_id": 30, "video_token_id": 31,
    "image_start_token_id": 28, "image_end_token_id": 29, "video_start_token_id": 26, "video_end_token_id": 27,
    "text_config": {
      "model_type": "glm5_next_text", "vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 4,
      "intermediate_size": 12, "moe_intermediate_size": 6, "num_attention_heads": 2, "num_key_value_heads": 2,
      "head_dim": 0, "qk_head_dim": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 0, "v_head_dim": 3,
      "q_lora_rank": 6, "kv_lora_rank": 5, "attention_bias": false, "hidden_act": "silu", "rms_norm_eps": 1e-5,
      "index_n_heads": 2, "index_head_dim": 4, "index_topk": 4, "index_kpool": 2,
      "index_kpool_always_select_tail": true, "linear_num_heads": 2, "linear_head_dim": 4,
      "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0, "hc_mult": 4, "hc_eps": 1e-6,
      "hc_sinkhorn_iters": 20, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
      "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "swiglu_limit": 10.0,
      "router_aux_loss_coef": 0.001, "num_nextn_predict_layers": 0, "pad_token_id": 0, "tie_word_embeddings": false,
      "layer_types": ["linear_attention", "deepseek_sparse_attention", "deepseek_sparse_attention",
                      "linear_attention"],
      "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
      "indexer_types": ["full", "full", "shared", "full"]
    }
  })");
}

inline nlohmann::json small_vision_config() {
  return nlohmann::json::parse(R"({
    "depth": 1, "hidden_size": 8, "num_heads": 2, "intermediate_size": 6, "hidden_act": "silu",
    "attention_bias": true, "rms_norm_eps": 1e-5, "image_size": 8, "patch_size": 2, "temporal_patch_size": 2,
    "spatial_merge_size": 2, "in_channels": 3, "out_hidden_size": 8, "projection_intermediate_size": 10,
    "swiglu_limit": 10.0
  })");
}

/// Norm weights around 1, biases small, everything else uniform with the spread of a trained projection.
inline Tensor seeded_weight(const ExpectedTensor& expected, std::mt19937_64& random) {
  std::vector<double> values(static_cast<std::size_t>(element_count(expected.shape)));
  const auto part = [&] { return static_cast<double>(random() >> 11) * 0x1p-52 - 1.0; };
  const bool matrix = expected.shape.size() >= 2;
  const double spread = matrix ? 2.0 / std::sqrt(static_cast<double>(expected.shape[1])) : 0.5;
  const bool norm =
      !matrix && expected.name.find("norm") != std::string::npos && expected.name.find("bias") == std::string::npos;
  for (double& value : values)
    value = (norm || expected.name.find("_scale") != std::string::npos ? 1.0 : 0.0) + spread * part();
  return Tensor::from_reals(expected.keep_f32 ? DType::kF32 : DType::kBF16, expected.shape, values);
}

using Weights64 = std::map<std::string, Tensor>;

/// Writes and opens a checkpoint of the config; `change` may replace or add tensors.
inline Checkpoint write_checkpoint(const std::filesystem::path& folder, const nlohmann::json& config,
                                   const std::function<void(Weights64&)>& change = nullptr) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump(1);
  std::mt19937_64 random(20260820);
  Weights64 tensors;
  for (const ExpectedTensor& expected : expected_tensors(read_config(folder / "config.json")))
    tensors.emplace(expected.name, seeded_weight(expected, random));
  if (change) change(tensors);
  write_safetensors(folder / "model.safetensors", tensors);
  return open_checkpoint(folder);
}

inline Tensor integers(Shape shape, const std::vector<std::int64_t>& values) {
  return Tensor::from_integers(DType::kI64, std::move(shape), values);
}

inline ModelInputs with_ids(Tensor ids) {
  ModelInputs inputs;
  inputs.input_ids = std::move(ids);
  return inputs;
}

/// One row of ids.
inline Tensor ids_row(const std::vector<std::int64_t>& ids) {
  return integers({1, static_cast<std::int64_t>(ids.size())}, ids);
}

/// Token ids 1 .. 25.
inline std::vector<std::int64_t> seeded_ids(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(1 + static_cast<std::int64_t>(random() % 25));
  return ids;
}

}  // namespace assay::reference
