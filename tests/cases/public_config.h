// The published config.json of GLM-5.3-Flash (shared/spec/model.md section 1) and small files for tests.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#ifndef ASSAY_SOURCE_DIR
#define ASSAY_SOURCE_DIR "."
#endif

namespace assay {

/// Folder of the independent implementation's records: $ASSAY_PEER, or shared/peer in or beside the checkout.
inline std::filesystem::path peer_folder() {
  if (const char* folder = std::getenv("ASSAY_PEER")) return folder;
  const std::filesystem::path source = ASSAY_SOURCE_DIR;
  const std::filesystem::path inside = source / "shared" / "peer";
  return std::filesystem::exists(inside) ? inside : source / ".." / "shared" / "peer";
}

/// A folder of its own for the running test.
inline std::filesystem::path test_folder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "assay_cases" /
                                       (std::string(test->test_suite_name()) + "." + test->name());
  std::filesystem::create_directories(folder);
  return folder;
}

inline std::filesystem::path write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

inline nlohmann::json public_config() {
  nlohmann::json layer_types, mlp_types, indexer_types, kda_layers, full_layers;
  for (int layer = 0; layer < 45; ++layer) {
    const bool dsa = layer % 4 == 3;
    layer_types.push_back(dsa ? "deepseek_sparse_attention" : "linear_attention");
    (dsa ? full_layers : kda_layers).push_back(layer);
    mlp_types.push_back(layer < 3 ? "dense" : "sparse");
    indexer_types.push_back("full");
  }
  nlohmann::json config = nlohmann::json::parse(R"({
    "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "tie_word_embeddings": false,
    "transformers_version": "5.16.0", "image_token_id": 154854, "video_token_id": 154855,
    "image_start_token_id": 154830, "image_end_token_id": 154831, "video_start_token_id": 154832,
    "video_end_token_id": 154833,
    "text_config": {
      "model_type": "glm5_next_text", "dtype": "bfloat16", "vocab_size": 154880, "max_position_embeddings": 1048576,
      "hidden_size": 4096, "num_hidden_layers": 45, "intermediate_size": 12288, "moe_intermediate_size": 2048,
      "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 0, "qk_head_dim": 256,
      "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "mla_use_nope": true, "q_lora_rank": 1536,
      "kv_lora_rank": 512, "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu",
      "rms_norm_eps": 1e-5, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048, "index_kpool": 4,
      "index_kpool_compress": true, "index_kpool_always_select_tail": true, "index_share_for_mtp_iteration": true,
      "indexer_rope_interleave": true,
      "linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
      "mhc": true, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20, "n_routed_experts": 288,
      "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
      "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
      "moe_router_dtype": "float32", "first_k_dense_replace": 3, "swiglu_limit": 10.0, "output_router_logits": false,
      "router_aux_loss_coef": 0.001, "num_nextn_predict_layers": 1, "tie_word_embeddings": false,
      "initializer_range": 0.02, "use_cache": true, "pad_token_id": 154820, "eos_token_id": [154820, 154827, 154829]},
    "vision_config": {
      "model_type": "glm5_next_vision", "depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096,
      "hidden_act": "silu", "attention_bias": true, "attention_dropout": 0.0, "rms_norm_eps": 1e-5, "image_size": 448,
      "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3, "out_hidden_size": 4096,
      "projection_intermediate_size": 10240, "swiglu_limit": 10.0, "initializer_range": 0.02},
    "quantization_config": {
      "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
      "modules_to_not_convert": ["lm_head"]}
  })");
  nlohmann::json& text = config["text_config"];
  text["layer_types"] = layer_types;
  text["mlp_layer_types"] = mlp_types;
  text["indexer_types"] = indexer_types;
  text["linear_attn_config"]["kda_layers"] = kda_layers;
  text["linear_attn_config"]["full_attn_layers"] = full_layers;
  return config;
}

}  // namespace assay
