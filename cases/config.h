// `config.json` of GLM-5.3-Flash (model_type glm5_next), and what follows from it.
// Source of the fields: shared/spec/model.md section 1. Two public spellings of the KDA fields are accepted:
// `linear_attn_config.{num_heads, head_dim, short_conv_kernel_size, gate_lower_bound}` and
// `linear_{num_heads, head_dim, conv_kernel_dim, lower_bound}`; both present and different is an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace assay {

enum class AttentionKind { kKda, kDsa };  ///< "linear_attention", "deepseek_sparse_attention"
enum class MlpKind { kDense, kMoe };      ///< "dense", "sparse"
enum class IndexerKind { kFull, kShared };

struct VisionConfig {
  std::int64_t depth, hidden_size, num_heads, intermediate_size, in_channels, patch_size, temporal_patch_size,
      spatial_merge_size, out_hidden_size, projection_intermediate_size, image_size;
  double rms_norm_eps, swiglu_limit, rope_theta;
  std::int64_t head_dim() const { return hidden_size / num_heads; }
  std::int64_t patch_values() const { return in_channels * temporal_patch_size * patch_size * patch_size; }
};

struct ModelConfig {
  std::int64_t vocab_size, hidden_size, num_hidden_layers, intermediate_size, moe_intermediate_size;
  std::int64_t num_attention_heads, qk_nope_head_dim, v_head_dim, q_lora_rank, kv_lora_rank;
  std::int64_t index_n_heads, index_head_dim, index_topk, index_kpool;
  bool index_kpool_always_select_tail;
  std::int64_t linear_num_heads, linear_head_dim, linear_conv_kernel_dim;
  std::optional<double> linear_lower_bound;  ///< null: the unbounded (softplus) gate
  std::int64_t hc_mult, hc_sinkhorn_iters;
  double hc_eps, rms_norm_eps, swiglu_limit, routed_scaling_factor, router_aux_loss_coef;
  std::int64_t n_routed_experts, n_shared_experts, num_experts_per_tok, n_group, topk_group;
  bool norm_topk_prob;
  std::int64_t
      num_nextn_predict_layers;  ///< MTP depth; 0 if the field is absent (the field is optional in public files)
  std::optional<std::int64_t> pad_token_id;
  std::int64_t image_token_id, video_start_token_id, video_end_token_id;
  std::vector<AttentionKind> layer_types;
  std::vector<MlpKind> mlp_layer_types;
  std::vector<IndexerKind> indexer_types;
  std::optional<VisionConfig> vision;
  std::optional<std::int64_t> fp8_block;    ///< weight_block_size of quantization_config (128), if present
  std::vector<std::string> unknown_fields;  ///< fields of the file that assay neither uses nor knows, as dotted paths
};

/// Reads and checks `config.json`. Throws InputError "<file>: field <dotted path>: <found>; <allowed>" for a missing
/// field that the model needs (never a class default), a wrong type or range, or a contradiction (lengths of
/// layer_types and mlp_layer_types, qk_rope_head_dim != 0, hidden_act other than silu, tie_word_embeddings true,
/// index_topk not a multiple of index_kpool, qk_head_dim != qk_nope_head_dim, the first indexer "shared",
/// n_routed_experts % n_group, ...).
ModelConfig read_config(const std::filesystem::path& file);

}  // namespace assay
