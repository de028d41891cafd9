#include "cases/config.h"

#include <algorithm>

#include <fmt/format.h>

#include "cases/config_fields.h"
#include "cases/error.h"

namespace assay {
namespace {

constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxExperts = 65536;
constexpr std::int64_t kMaxStreams = 64;
constexpr std::int64_t kMaxPatchSide = 1024;  // of any of the four factors of a flattened patch

/// Constant of the model when vision_config has no rope field, as in the published file (model.md section 1).
constexpr double kVisionRopeTheta = 10000.0;

void append(std::vector<std::string>& all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// A KDA field under its flat name or its name in linear_attn_config; both must agree.
class KdaFields {
 public:
  KdaFields(ConfigFields& text, ConfigFields* nested) : text_(text), nested_(nested) {}

  std::int64_t integer(const std::string& flat, const std::string& nested, std::int64_t most = kMaxSize) {
    const bool in_nested = nested_ != nullptr && nested_->has(nested);
    const bool in_flat = text_.has(flat);
    if (!in_nested) return text_.integer(flat, 1, most);
    const std::int64_t value = nested_->integer(nested, 1, most);
    if (in_flat && text_.integer(flat, 1, most) != value) {
      text_.fail(flat, std::to_string(text_.integer(flat, 1, most)),
                 fmt::format("{} is {}", nested_->dotted(nested), value));
    }
    return value;
  }

  /// Null is allowed: the unbounded gate.
  std::optional<double> lower_bound(const std::string& flat, const std::string& nested) {
    const bool in_nested = nested_ != nullptr && nested_->has(nested);
    const bool in_flat = text_.has(flat);
    if (!in_nested) return bound(text_, flat);
    const std::optional<double> value = bound(*nested_, nested);
    if (in_flat && bound(text_, flat) != value) {
      text_.fail(flat, shown(bound(text_, flat)), fmt::format("{} is {}", nested_->dotted(nested), shown(value)));
    }
    return value;
  }

 private:
  static std::string shown(std::optional<double> value) { return value ? fmt::format("{}", *value) : "null"; }

  static std::optional<double> bound(ConfigFields& fields, const std::string& name) {
    fields.at(name, "a finite number < 0, or null, is needed");
    if (!fields.has_value(name)) return std::nullopt;
    const double value = fields.real(name);
    if (!(value < 0)) fields.fail(name, fmt::format("{}", value), "a finite number < 0, or null, is needed");
    return value;
  }

  ConfigFields& text_;
  ConfigFields* nested_;
};

void read_sizes(ConfigFields& text, ModelConfig& config) {
  config.vocab_size = text.integer("vocab_size", 1);
  config.hidden_size = text.integer("hidden_size", 1);
  config.num_hidden_layers = text.integer("num_hidden_layers", 1, kMaxLayers);
  config.intermediate_size = text.integer("intermediate_size", 1);
  config.moe_intermediate_size = text.integer("moe_intermediate_size", 1);
  config.num_nextn_predict_layers =
      text.has_value("num_nextn_predict_layers") ? text.integer("num_nextn_predict_layers", 0, kMaxLayers) : 0;
  config.rms_norm_eps = text.positive("rms_norm_eps");
  config.swiglu_limit = text.positive("swiglu_limit");
  text.need_text("hidden_act", "silu");
  if (text.has("tie_word_embeddings")) text.need_boolean("tie_word_embeddings", false);
}

void read_attention(ConfigFields& text, ModelConfig& config) {
  config.num_attention_heads = text.integer("num_attention_heads", 1);
  if (text.has_value("num_key_value_heads")) text.need_integer("num_key_value_heads", config.num_attention_heads);
  config.qk_nope_head_dim = text.integer("qk_nope_head_dim", 1);
  text.need_integer("qk_rope_head_dim", 0);
  if (text.has_value("qk_head_dim") && text.integer("qk_head_dim", 0) != config.qk_nope_head_dim) {
    text.fail("qk_head_dim", std::to_string(text.integer("qk_head_dim", 0)),
              fmt::format("qk_nope_head_dim is {} and there is no rope part", config.qk_nope_head_dim));
  }
  if (text.has_value("head_dim")) text.need_integer("head_dim", 0);
  if (text.has("mla_use_nope")) text.need_boolean("mla_use_nope", true);
  if (text.has("attention_bias")) text.need_boolean("attention_bias", false);
  if (text.has_value("attention_dropout") && text.not_negative("attention_dropout") != 0) {
    text.fail("attention_dropout", fmt::format("{}", text.real("attention_dropout")), "0 is needed");
  }
  config.v_head_dim = text.integer("v_head_dim", 1);
  config.q_lora_rank = text.integer("q_lora_rank", 1);
  config.kv_lora_rank = text.integer("kv_lora_rank", 1);
}

void read_indexer(ConfigFields& text, ModelConfig& config) {
  config.index_n_heads = text.integer("index_n_heads", 1);
  config.index_head_dim = text.integer("index_head_dim", 1);
  config.index_topk = text.integer("index_topk", 1);
  config.index_kpool = text.integer("index_kpool", 1);
  if (config.index_topk % config.index_kpool != 0) {
    text.fail("index_topk", std::to_string(config.index_topk),
              fmt::format("a multiple of index_kpool = {} is needed", config.index_kpool));
  }
  config.index_kpool_always_select_tail = text.boolean("index_kpool_always_select_tail");
  if (text.has("index_kpool_compress")) text.need_boolean("index_kpool_compress", true);
  text.unused_boolean("index_share_for_mtp_iteration");
  text.unused_boolean("indexer_rope_interleave");
}

void read_streams(ConfigFields& text, ModelConfig& config) {
  if (text.has("mhc")) text.need_boolean("mhc", true);
  config.hc_mult = text.integer("hc_mult", 1, kMaxStreams);
  config.hc_sinkhorn_iters = text.integer("hc_sinkhorn_iters", 1);
  config.hc_eps = text.positive("hc_eps");
}

void read_experts(ConfigFields& text, ModelConfig& config) {
  config.n_routed_experts = text.integer("n_routed_experts", 1, kMaxExperts);
  config.n_shared_experts = text.integer("n_shared_experts", 1, kMaxExperts);
  config.num_experts_per_tok = text.integer("num_experts_per_tok", 1);
  config.n_group = text.integer("n_group", 1);
  config.topk_group = text.integer("topk_group", 1);
  if (config.n_routed_experts % config.n_group != 0) {
    text.fail("n_group", std::to_string(config.n_group),
              fmt::format("a divisor of n_routed_experts = {} is needed", config.n_routed_experts));
  }
  if (config.topk_group > config.n_group) {
    text.fail("topk_group", std::to_string(config.topk_group),
              fmt::format("at most n_group = {} is allowed", config.n_group));
  }
  const std::int64_t choice = config.topk_group * (config.n_routed_experts / config.n_group);
  if (config.num_experts_per_tok > choice) {
    text.fail("num_experts_per_tok", std::to_string(config.num_experts_per_tok),
              fmt::format("at most {} is allowed (topk_group * n_routed_experts / n_group)", choice));
  }
  if (config.moe_intermediate_size > kMaxSize / config.n_shared_experts) {
    text.fail("n_shared_experts", std::to_string(config.n_shared_experts),
              fmt::format("moe_intermediate_size * n_shared_experts may be {} at most", kMaxSize));
  }
  config.norm_topk_prob = text.boolean("norm_topk_prob");
  config.routed_scaling_factor = text.positive("routed_scaling_factor");
  config.router_aux_loss_coef = text.not_negative("router_aux_loss_coef");
  if (text.has("scoring_func")) text.need_text("scoring_func", "sigmoid");
  if (text.has("topk_method")) text.need_text("topk_method", "noaux_tc");
  if (text.has("moe_router_dtype")) text.need_text("moe_router_dtype", "float32");
  text.unused_boolean("output_router_logits");
}

void read_layer_kinds(ConfigFields& text, ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  for (const std::string& word :
       text.words("layer_types", layers, "num_hidden_layers", {"linear_attention", "deepseek_sparse_attention"})) {
    config.layer_types.push_back(word == "linear_attention" ? AttentionKind::kKda : AttentionKind::kDsa);
  }
  for (const std::string& word : text.words("mlp_layer_types", layers, "num_hidden_layers", {"dense", "sparse"})) {
    config.mlp_layer_types.push_back(word == "dense" ? MlpKind::kDense : MlpKind::kMoe);
  }
  for (const std::string& word : text.words("indexer_types", layers, "num_hidden_layers", {"full", "shared"})) {
    config.indexer_types.push_back(word == "full" ? IndexerKind::kFull : IndexerKind::kShared);
  }
  const auto first_dsa = std::find(config.layer_types.begin(), config.layer_types.end(), AttentionKind::kDsa);
  if (first_dsa != config.layer_types.end()) {
    const auto layer = static_cast<std::size_t>(first_dsa - config.layer_types.begin());
    if (config.indexer_types[layer] == IndexerKind::kShared) {
      text.fail(fmt::format("indexer_types[{}]", layer), "\"shared\"",
                "the first sparse attention layer has no selection to share, \"full\" is needed");
    }
  }
  if (text.has_value("first_k_dense_replace")) {
    const std::int64_t dense = text.integer("first_k_dense_replace", 0);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const bool is_dense = config.mlp_layer_types[layer] == MlpKind::kDense;
      if (is_dense != (static_cast<std::int64_t>(layer) < dense)) {
        text.fail("first_k_dense_replace", std::to_string(dense),
                  fmt::format("mlp_layer_types[{}] is {}", layer, is_dense ? "dense" : "sparse"));
      }
    }
  }
}

/// kda_layers and full_attn_layers list the layers of each kind, counted from 0.
void check_layer_list(ConfigFields& nested, const std::string& name, AttentionKind kind, const ModelConfig& config) {
  if (!nested.has(name)) return;
  std::vector<std::int64_t> listed = nested.integers(name);
  std::sort(listed.begin(), listed.end());
  std::vector<std::int64_t> expected;
  for (std::size_t layer = 0; layer < config.layer_types.size(); ++layer) {
    if (config.layer_types[layer] == kind) expected.push_back(static_cast<std::int64_t>(layer));
  }
  const auto [found, wanted] = std::mismatch(listed.begin(), listed.end(), expected.begin(), expected.end());
  if (found == listed.end() && wanted == expected.end()) return;
  const std::string differs =
      found == listed.end() || (wanted != expected.end() && *wanted < *found)
          ? fmt::format("layer {} is not listed", *wanted)
          : fmt::format("layer {} is listed{}", *found,
                        std::adjacent_find(listed.begin(), listed.end()) != listed.end() ? " (one layer twice)" : "");
  nested.fail(name, differs, "layer_types says otherwise (layers count from 0)");
}

void read_kda(ConfigFields& text, ModelConfig& config, std::vector<std::string>& unknown) {
  std::optional<ConfigFields> nested;
  if (text.has_value("linear_attn_config")) nested.emplace(text.object("linear_attn_config"));
  KdaFields kda(text, nested ? &*nested : nullptr);
  config.linear_num_heads = kda.integer("linear_num_heads", "num_heads");
  config.linear_head_dim = kda.integer("linear_head_dim", "head_dim");
  config.linear_conv_kernel_dim = kda.integer("linear_conv_kernel_dim", "short_conv_kernel_size");
  config.linear_lower_bound = kda.lower_bound("linear_lower_bound", "gate_lower_bound");
  if (!nested) return;
  check_layer_list(*nested, "kda_layers", AttentionKind::kKda, config);
  check_layer_list(*nested, "full_attn_layers", AttentionKind::kDsa, config);
  append(unknown, nested->unknown());
}

void read_text(ConfigFields& text, ModelConfig& config, std::vector<std::string>& unknown) {
  if (text.has("model_type")) text.need_text("model_type", "glm5_next_text");
  read_sizes(text, config);
  read_attention(text, config);
  read_indexer(text, config);
  read_streams(text, config);
  read_experts(text, config);
  read_layer_kinds(text, config);
  read_kda(text, config, unknown);
  if (text.has_value("pad_token_id")) config.pad_token_id = text.integer("pad_token_id", 0, config.vocab_size - 1);
  text.unused_token_ids("bos_token_id");
  text.unused_token_ids("eos_token_id");
  text.unused_text("dtype");
  text.unused_text("torch_dtype");
  text.unused_integer("max_position_embeddings");
  text.unused_real("initializer_range");
  text.unused_boolean("use_cache");
  append(unknown, text.unknown());
}

double read_rope(ConfigFields& vision, std::vector<std::string>& unknown) {
  if (!vision.has_value("rope_parameters")) return kVisionRopeTheta;
  ConfigFields rope = vision.object("rope_parameters");
  rope.need_text("rope_type", "axial");
  const double theta = rope.positive("rope_theta");
  append(unknown, rope.unknown());
  return theta;
}

VisionConfig read_vision(ConfigFields& vision, std::int64_t hidden_size, std::vector<std::string>& unknown) {
  VisionConfig config{};
  if (vision.has("model_type")) vision.need_text("model_type", "glm5_next_vision");
  config.depth = vision.integer("depth", 1, kMaxLayers);
  config.hidden_size = vision.integer("hidden_size", 1);
  config.num_heads = vision.integer("num_heads", 1);
  if (config.hidden_size % config.num_heads != 0) {
    vision.fail("num_heads", std::to_string(config.num_heads),
                fmt::format("a divisor of hidden_size = {} is needed", config.hidden_size));
  }
  if (config.head_dim() % 4 != 0) {  // the rotary embedding pairs the halves of two axes
    vision.fail("num_heads", std::to_string(config.num_heads),
                fmt::format("heads of a multiple of 4 channels are needed, not {}", config.head_dim()));
  }
  config.intermediate_size = vision.integer("intermediate_size", 1);
  config.in_channels = vision.integer("in_channels", 1, kMaxPatchSide);
  config.patch_size = vision.integer("patch_size", 1, kMaxPatchSide);
  config.temporal_patch_size = vision.integer("temporal_patch_size", 1, kMaxPatchSide);
  config.spatial_merge_size = vision.integer("spatial_merge_size", 1, kMaxPatchSide);
  config.out_hidden_size = vision.integer("out_hidden_size", 1);
  if (config.out_hidden_size != hidden_size) {
    vision.fail("out_hidden_size", std::to_string(config.out_hidden_size),
                fmt::format("text_config.hidden_size = {} is needed", hidden_size));
  }
  config.projection_intermediate_size = vision.integer("projection_intermediate_size", 1);
  config.image_size = vision.integer("image_size", 1);
  if (config.image_size % config.patch_size != 0) {
    vision.fail("image_size", std::to_string(config.image_size),
                fmt::format("a multiple of patch_size = {} is needed", config.patch_size));
  }
  config.rms_norm_eps = vision.positive("rms_norm_eps");
  config.swiglu_limit = vision.positive("swiglu_limit");
  vision.need_text("hidden_act", "silu");
  vision.need_boolean("attention_bias", true);
  if (vision.has_value("attention_dropout") && vision.not_negative("attention_dropout") != 0) {
    vision.fail("attention_dropout", fmt::format("{}", vision.real("attention_dropout")), "0 is needed");
  }
  config.rope_theta = read_rope(vision, unknown);
  vision.unused_real("initializer_range");
  vision.unused_text("dtype");
  vision.unused_text("torch_dtype");
  append(unknown, vision.unknown());
  return config;
}

std::int64_t read_quantization(ConfigFields& quantization, std::vector<std::string>& unknown) {
  quantization.need_text("quant_method", "fp8");
  if (quantization.has_value("fmt")) quantization.need_text("fmt", "e4m3");
  if (quantization.has_value("activation_scheme")) quantization.need_text("activation_scheme", "dynamic");
  const std::vector<std::int64_t> block = quantization.integers("weight_block_size");
  if (block.size() != 2 || block[0] != block[1] || block[0] < 1 || block[0] > kMaxSize) {
    quantization.fail("weight_block_size", nlohmann::json(block).dump(), "two equal integers >= 1 are needed");
  }
  quantization.unused_texts("modules_to_not_convert");
  append(unknown, quantization.unknown());
  return block[0];
}

/// Ids of the media placeholders; they must be there when there is a vision tower.
void read_media_tokens(ConfigFields& top, ModelConfig& config) {
  const auto token = [&](const std::string& name) -> std::int64_t {
    if (!config.vision && !top.has_value(name)) return -1;  // no such token
    return top.integer(name, 0, config.vocab_size - 1);
  };
  config.image_token_id = token("image_token_id");
  config.video_start_token_id = token("video_start_token_id");
  config.video_end_token_id = token("video_end_token_id");
  if (config.vision && config.video_start_token_id == config.video_end_token_id) {
    top.fail("video_end_token_id", std::to_string(config.video_end_token_id), "it is video_start_token_id as well");
  }
  top.unused_integer("video_token_id");
  top.unused_integer("image_start_token_id");
  top.unused_integer("image_end_token_id");
}

}  // namespace

ModelConfig read_config(const std::filesystem::path& file) {
  const nlohmann::json parsed = read_json_object(file);
  ConfigFields top(file.string(), "", parsed);
  ModelConfig config{};
  std::vector<std::string> unknown;

  top.need_text("model_type", "glm5_next");
  top.need_boolean("tie_word_embeddings", false);
  top.unused_texts("architectures");
  top.unused_text("dtype");
  top.unused_text("torch_dtype");
  top.unused_text("transformers_version");
  ConfigFields text = top.object("text_config");
  read_text(text, config, unknown);
  if (top.has_value("vision_config")) {
    ConfigFields vision = top.object("vision_config");
    config.vision = read_vision(vision, config.hidden_size, unknown);
  }
  read_media_tokens(top, config);
  if (top.has_value("quantization_config")) {
    ConfigFields quantization = top.object("quantization_config");
    config.fp8_block = read_quantization(quantization, unknown);
  }
  append(unknown, top.unknown());
  std::sort(unknown.begin(), unknown.end());
  config.unknown_fields = std::move(unknown);
  return config;
}

}  // namespace assay
