// The tensor inventory of shared/spec/model.md section 2, for any config.
#include "cases/checkpoint.h"

namespace assay {
namespace {

constexpr const char* kText = "model.language_model.";
constexpr const char* kVision = "model.visual.";

/// Collects tensors under a name prefix.
class Inventory {
 public:
  void weight(const std::string& name, Shape shape) { add(name + ".weight", std::move(shape), false, false); }
  void fp8_weight(const std::string& name, Shape shape) { add(name + ".weight", std::move(shape), false, true); }
  void bias(const std::string& name, std::int64_t size) { add(name + ".bias", {size}, false, false); }
  void bare(const std::string& name, Shape shape) { add(name, std::move(shape), false, false); }
  void f32(const std::string& name, Shape shape) { add(name, std::move(shape), true, false); }

  std::vector<ExpectedTensor> take() { return std::move(tensors_); }

 private:
  void add(std::string name, Shape shape, bool keep_f32, bool may_be_fp8) {
    tensors_.push_back({std::move(name), std::move(shape), keep_f32, may_be_fp8});
  }

  std::vector<ExpectedTensor> tensors_;
};

/// Gate, up and down projections of width `width`.
void add_mlp(Inventory& inventory, const std::string& prefix, std::int64_t hidden, std::int64_t width) {
  inventory.fp8_weight(prefix + "gate_proj", {width, hidden});
  inventory.fp8_weight(prefix + "up_proj", {width, hidden});
  inventory.fp8_weight(prefix + "down_proj", {hidden, width});
}

void add_norms(Inventory& inventory, const std::string& layer, const ModelConfig& config) {
  inventory.weight(layer + "input_layernorm", {config.hidden_size});
  inventory.weight(layer + "post_attention_layernorm", {config.hidden_size});
}

void add_streams(Inventory& inventory, const std::string& layer, const ModelConfig& config) {
  const std::int64_t n = config.hc_mult;
  const std::int64_t rows = n * n + 2 * n;  // pre, post, comb
  for (const char* site : {"hc_attn_", "hc_ffn_"}) {
    inventory.bare(layer + site + "fn", {rows, n * config.hidden_size});
    inventory.f32(layer + site + "base", {rows});
    inventory.f32(layer + site + "scale", {3});
  }
}

void add_kda(Inventory& inventory, const std::string& attention, const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t heads = config.linear_num_heads;
  const std::int64_t head_dim = config.linear_head_dim;
  const std::int64_t width = heads * head_dim;
  for (const char* part : {"q", "k", "v"}) {
    inventory.weight(attention + part + "_proj", {width, hidden});
    inventory.weight(attention + part + "_conv1d", {width, 1, config.linear_conv_kernel_dim});
  }
  for (const char* gate : {"f", "g"}) {
    inventory.weight(attention + gate + "_a_proj", {head_dim, hidden});
    inventory.weight(attention + gate + "_b_proj", {width, head_dim});
  }
  inventory.weight(attention + "b_proj", {heads, hidden});
  inventory.f32(attention + "A_log", {heads});
  inventory.f32(attention + "dt_bias", {width});
  inventory.weight(attention + "o_norm", {head_dim});
  inventory.weight(attention + "o_proj", {hidden, width});
}

void add_indexer(Inventory& inventory, const std::string& indexer, const ModelConfig& config) {
  const std::int64_t dim = config.index_head_dim;
  inventory.weight(indexer + "wq_b", {config.index_n_heads * dim, config.q_lora_rank});
  inventory.weight(indexer + "wk", {dim, config.hidden_size});
  inventory.weight(indexer + "k_norm", {dim});
  inventory.bias(indexer + "k_norm", dim);
  inventory.weight(indexer + "weights_proj", {config.index_n_heads, config.hidden_size});
  inventory.bare(indexer + "index_kpool_compress_gate", {dim, config.hidden_size});
  inventory.bare(indexer + "index_kpool_compress_ape", {config.index_kpool, dim});
}

/// A layer that shares its neighbour's selection has no indexer of its own.
void add_dsa(Inventory& inventory, const std::string& attention, const ModelConfig& config, IndexerKind indexer) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t heads = config.num_attention_heads;
  const std::int64_t key = config.qk_nope_head_dim;
  const std::int64_t value = config.v_head_dim;
  inventory.fp8_weight(attention + "q_a_proj", {config.q_lora_rank, hidden});
  inventory.weight(attention + "q_a_layernorm", {config.q_lora_rank});
  inventory.fp8_weight(attention + "q_b_proj", {heads * key, config.q_lora_rank});
  inventory.fp8_weight(attention + "kv_a_proj_with_mqa", {config.kv_lora_rank, hidden});
  inventory.weight(attention + "kv_a_layernorm", {config.kv_lora_rank});
  inventory.weight(attention + "kv_b_proj", {heads * (key + value), config.kv_lora_rank});
  inventory.fp8_weight(attention + "o_proj", {hidden, heads * value});
  if (indexer == IndexerKind::kFull) add_indexer(inventory, attention + "indexer.", config);
}

void add_moe(Inventory& inventory, const std::string& mlp, const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  inventory.weight(mlp + "gate", {config.n_routed_experts, hidden});
  inventory.f32(mlp + "gate.e_score_correction_bias", {config.n_routed_experts});
  for (std::int64_t expert = 0; expert < config.n_routed_experts; ++expert) {
    add_mlp(inventory, mlp + "experts." + std::to_string(expert) + ".", hidden, config.moe_intermediate_size);
  }
  add_mlp(inventory, mlp + "shared_experts.", hidden, config.moe_intermediate_size * config.n_shared_experts);
}

std::string layer_prefix(std::int64_t layer) { return std::string(kText) + "layers." + std::to_string(layer) + "."; }

void add_trunk_layer(Inventory& inventory, std::size_t layer, const ModelConfig& config) {
  const std::string prefix = layer_prefix(static_cast<std::int64_t>(layer));
  add_norms(inventory, prefix, config);
  add_streams(inventory, prefix, config);
  if (config.layer_types[layer] == AttentionKind::kKda) {
    add_kda(inventory, prefix + "self_attn.", config);
  } else {
    add_dsa(inventory, prefix + "self_attn.", config, config.indexer_types[layer]);
  }
  if (config.mlp_layer_types[layer] == MlpKind::kDense) {
    add_mlp(inventory, prefix + "mlp.", config.hidden_size, config.intermediate_size);
  } else {
    add_moe(inventory, prefix + "mlp.", config);
  }
}

/// Single stream (no hc_*), always sparse attention and experts; embedding and head are the trunk's.
void add_mtp_layer(Inventory& inventory, std::int64_t depth, const ModelConfig& config) {
  const std::string prefix = layer_prefix(config.num_hidden_layers + depth);
  const std::int64_t hidden = config.hidden_size;
  inventory.weight(prefix + "enorm", {hidden});
  inventory.weight(prefix + "hnorm", {hidden});
  inventory.weight(prefix + "eh_proj", {hidden, 2 * hidden});
  inventory.weight(prefix + "shared_head.norm", {hidden});
  add_norms(inventory, prefix, config);
  add_dsa(inventory, prefix + "self_attn.", config, IndexerKind::kFull);
  add_moe(inventory, prefix + "mlp.", config);
}

void add_affine(Inventory& inventory, const std::string& name, std::int64_t out, std::int64_t in) {
  inventory.weight(name, {out, in});
  inventory.bias(name, out);
}

void add_vision(Inventory& inventory, const VisionConfig& vision) {
  const std::string prefix = kVision;
  const std::int64_t hidden = vision.hidden_size;
  const std::int64_t out = vision.out_hidden_size;
  inventory.weight(prefix + "patch_embed.proj",
                   {hidden, vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size});
  inventory.bias(prefix + "patch_embed.proj", hidden);
  for (std::int64_t block = 0; block < vision.depth; ++block) {
    const std::string at = prefix + "blocks." + std::to_string(block) + ".";
    inventory.weight(at + "norm1", {hidden});
    inventory.weight(at + "norm2", {hidden});
    add_affine(inventory, at + "attn.qkv", 3 * hidden, hidden);
    add_affine(inventory, at + "attn.proj", hidden, hidden);
    inventory.weight(at + "attn.q_norm", {vision.head_dim()});
    inventory.weight(at + "attn.k_norm", {vision.head_dim()});
    add_affine(inventory, at + "mlp.gate_proj", vision.intermediate_size, hidden);
    add_affine(inventory, at + "mlp.up_proj", vision.intermediate_size, hidden);
    add_affine(inventory, at + "mlp.down_proj", hidden, vision.intermediate_size);
  }
  inventory.weight(prefix + "post_layernorm", {hidden});
  inventory.weight(prefix + "downsample", {out, hidden, vision.spatial_merge_size, vision.spatial_merge_size});
  inventory.bias(prefix + "downsample", out);
  inventory.weight(prefix + "merger.proj", {out, out});
  inventory.weight(prefix + "merger.post_projection_norm", {out});
  inventory.bias(prefix + "merger.post_projection_norm", out);
  inventory.weight(prefix + "merger.gate_proj", {vision.projection_intermediate_size, out});
  inventory.weight(prefix + "merger.up_proj", {vision.projection_intermediate_size, out});
  inventory.weight(prefix + "merger.down_proj", {out, vision.projection_intermediate_size});
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  Inventory inventory;
  inventory.weight(std::string(kText) + "embed_tokens", {config.vocab_size, config.hidden_size});
  for (std::size_t layer = 0; layer < config.layer_types.size(); ++layer) add_trunk_layer(inventory, layer, config);
  inventory.weight(std::string(kText) + "norm", {config.hidden_size});
  inventory.weight("lm_head", {config.vocab_size, config.hidden_size});
  for (std::int64_t depth = 0; depth < config.num_nextn_predict_layers; ++depth) {
    add_mtp_layer(inventory, depth, config);
  }
  if (config.vision) add_vision(inventory, *config.vision);
  return inventory.take();
}

}  // namespace assay
