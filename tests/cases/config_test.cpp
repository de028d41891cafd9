#include "cases/config.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cases/error.h"
#include "public_config.h"

namespace assay {
namespace {

using nlohmann::json;

ModelConfig read(const json& config) { return read_config(write_text(test_folder() / "config.json", config.dump())); }

/// The message without the file name, or "" if the file is accepted.
std::string message_of_text(const std::string& text) {
  const auto file = write_text(test_folder() / "config.json", text);
  try {
    read_config(file);
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find(file.string() + ": "), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message.substr(file.string().size() + 2);
  }
  return "";
}

/// The published config with one value replaced ("/text_config/x"), or removed when `value` is discarded.
json changed(const std::string& pointer, const json& value) {
  json config = public_config();
  const json::json_pointer at(pointer);
  if (value.is_discarded()) {
    config[at.parent_pointer()].erase(at.back());
  } else {
    config[at] = value;
  }
  return config;
}

std::string message(const std::string& pointer, const json& value) {
  return message_of_text(changed(pointer, value).dump());
}

const json kRemoved = json(json::value_t::discarded);

TEST(Config, published_file_is_read_whole) {
  const ModelConfig config = read(public_config());
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.num_hidden_layers, 45);
  EXPECT_EQ(config.index_kpool, 4);
  EXPECT_EQ(config.linear_num_heads, 64);
  EXPECT_EQ(config.linear_conv_kernel_dim, 4);
  EXPECT_EQ(config.linear_lower_bound, -5.0);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.hc_eps, 1e-6);
  EXPECT_EQ(config.num_nextn_predict_layers, 1);
  EXPECT_EQ(config.pad_token_id, 154820);
  EXPECT_EQ(config.fp8_block, 128);
  EXPECT_EQ(config.image_token_id, 154854);
  EXPECT_EQ(std::count(config.layer_types.begin(), config.layer_types.end(), AttentionKind::kDsa), 11);
  EXPECT_EQ(std::count(config.mlp_layer_types.begin(), config.mlp_layer_types.end(), MlpKind::kMoe), 42);
  EXPECT_EQ(config.unknown_fields, std::vector<std::string>{});
}

TEST(Config, vision_without_rope_field_has_theta_10000) {
  const ModelConfig config = read(public_config());
  ASSERT_TRUE(config.vision.has_value());
  EXPECT_EQ(config.vision->rope_theta, 10000.0);
  EXPECT_EQ(config.vision->head_dim(), 64);
  EXPECT_EQ(config.vision->patch_values(), 1176);  // model.md section 12
}

TEST(Config, peer_files_are_read_whole) {
  if (!std::filesystem::exists(peer_folder())) GTEST_SKIP() << "no peer records at " << peer_folder();
  for (const char* name : {"kda_dsa", "shared_index_groups", "vision", "long_chunks"}) {
    const ModelConfig config = read_config(peer_folder() / name / "config.json");
    EXPECT_EQ(config.unknown_fields, std::vector<std::string>{}) << name;
    EXPECT_EQ(config.linear_lower_bound, -5.0) << name;
    EXPECT_EQ(config.num_nextn_predict_layers, 0) << name;
    EXPECT_FALSE(config.fp8_block.has_value()) << name;
  }
}

TEST(Config, shared_indexer_behind_a_full_one_is_allowed) {
  if (!std::filesystem::exists(peer_folder())) GTEST_SKIP() << "no peer records at " << peer_folder();
  const ModelConfig config = read_config(peer_folder() / "shared_index_groups" / "config.json");
  EXPECT_EQ(config.indexer_types[1], IndexerKind::kShared);
  EXPECT_EQ(config.n_group, 2);
}

TEST(Config, both_spellings_of_the_kda_fields_may_agree) {
  json config = public_config();
  config["text_config"]["linear_num_heads"] = 64;
  config["text_config"]["linear_lower_bound"] = -5;
  EXPECT_EQ(read(config).linear_num_heads, 64);
}

TEST(Config, null_lower_bound_is_the_unbounded_gate) {
  EXPECT_FALSE(read(changed("/text_config/linear_attn_config/gate_lower_bound", nullptr)).linear_lower_bound);
}

TEST(Config, optional_fields_may_be_absent_or_null) {
  EXPECT_EQ(read(changed("/text_config/num_nextn_predict_layers", kRemoved)).num_nextn_predict_layers, 0);
  EXPECT_FALSE(read(changed("/text_config/pad_token_id", nullptr)).pad_token_id);
  EXPECT_FALSE(read(changed("/quantization_config", kRemoved)).fp8_block);
  EXPECT_EQ(read(changed("/text_config/mhc", kRemoved)).hc_mult, 4);
}

TEST(Config, without_vision_the_media_tokens_may_be_absent) {
  json config = public_config();
  for (const char* name : {"vision_config", "image_token_id", "video_start_token_id", "video_end_token_id"}) {
    config.erase(name);
  }
  const ModelConfig read_back = read(config);
  EXPECT_FALSE(read_back.vision);
  EXPECT_EQ(read_back.image_token_id, -1);
}

TEST(Config, unknown_fields_are_listed_as_dotted_paths) {
  json config = public_config();
  config["zeal"] = 1;
  config["text_config"]["rope_theta"] = 1;
  config["text_config"]["linear_attn_config"]["use_full_rank_gate"] = true;
  config["vision_config"]["depth_scale"] = 2;
  config["quantization_config"]["x"] = 0;
  EXPECT_EQ(read(config).unknown_fields,
            (std::vector<std::string>{"quantization_config.x", "text_config.linear_attn_config.use_full_rank_gate",
                                      "text_config.rope_theta", "vision_config.depth_scale", "zeal"}));
}

TEST(Config, missing_field_is_named_and_no_default_is_used) {
  EXPECT_EQ(message("/text_config/index_kpool", kRemoved),
            "field text_config.index_kpool: missing; an integer >= 1 is needed (no class default is used)");
}

TEST(Config, every_needed_field_is_missed) {
  const std::set<std::string> optional = {"model_type",
                                          "dtype",
                                          "max_position_embeddings",
                                          "num_key_value_heads",
                                          "head_dim",
                                          "qk_head_dim",
                                          "mla_use_nope",
                                          "attention_bias",
                                          "attention_dropout",
                                          "index_kpool_compress",
                                          "index_share_for_mtp_iteration",
                                          "indexer_rope_interleave",
                                          "mhc",
                                          "scoring_func",
                                          "topk_method",
                                          "moe_router_dtype",
                                          "first_k_dense_replace",
                                          "output_router_logits",
                                          "num_nextn_predict_layers",
                                          "tie_word_embeddings",
                                          "initializer_range",
                                          "use_cache",
                                          "pad_token_id",
                                          "eos_token_id"};
  const json text = public_config()["text_config"];
  for (const auto& [name, value] : text.items()) {
    const std::string found = message("/text_config/" + name, kRemoved);
    if (optional.count(name) != 0) {
      EXPECT_EQ(found, "") << name;
    } else {
      EXPECT_NE(found.find(": missing; "), std::string::npos) << name << ": " << found;
    }
  }
  const json vision = public_config()["vision_config"];
  for (const auto& [name, value] : vision.items()) {
    if (name == "model_type" || name == "attention_dropout" || name == "initializer_range") continue;
    EXPECT_EQ(message("/vision_config/" + name, kRemoved).find("field vision_config." + name + ": missing; "), 0U);
  }
}

struct Malformed {
  std::string pointer;
  json value;
  std::string message;
};

const std::vector<Malformed>& malformed() {
  static const std::vector<Malformed> cases = {
      {"/model_type", "glm4_moe", "field model_type: \"glm4_moe\"; \"glm5_next\" is needed"},
      {"/tie_word_embeddings", true, "field tie_word_embeddings: true; this model needs false"},
      {"/tie_word_embeddings", kRemoved,
       "field tie_word_embeddings: missing; true or false is needed (no class default is used)"},
      {"/text_config", json::array(), "field text_config: []; an object is needed"},
      {"/text_config/tie_word_embeddings", true, "field text_config.tie_word_embeddings: true; this model needs false"},
      {"/text_config/vocab_size", "154880", "field text_config.vocab_size: \"154880\"; an integer >= 1 is needed"},
      {"/text_config/hidden_size", 4096.0, "field text_config.hidden_size: 4096.0; an integer >= 1 is needed"},
      {"/text_config/hidden_size", 0, "field text_config.hidden_size: 0; an integer >= 1 is needed"},
      {"/text_config/hidden_size", 4000000000,
       "field text_config.hidden_size: 4000000000; an integer in 1 to 1073741824 is needed"},
      {"/text_config/num_hidden_layers", 44,
       "field text_config.layer_types: 45 entries; 44 are needed (text_config.num_hidden_layers)"},
      {"/text_config/num_hidden_layers", true, "field text_config.num_hidden_layers: true; an integer >= 1 is needed"},
      {"/text_config/layer_types/7", "full_attention",
       "field text_config.layer_types[7]: \"full_attention\"; linear_attention or deepseek_sparse_attention is needed"},
      {"/text_config/mlp_layer_types/44", 1, "field text_config.mlp_layer_types[44]: 1; dense or sparse is needed"},
      {"/text_config/mlp_layer_types", json::array({"dense"}),
       "field text_config.mlp_layer_types: 1 entries; 45 are needed (text_config.num_hidden_layers)"},
      {"/text_config/indexer_types", json::array(),
       "field text_config.indexer_types: 0 entries; 45 are needed (text_config.num_hidden_layers)"},
      {"/text_config/indexer_types", "full", "field text_config.indexer_types: \"full\"; a list of words is needed"},
      {"/text_config/indexer_types/3", "shared",
       "field text_config.indexer_types[3]: \"shared\"; the first sparse attention layer has no selection to share, "
       "\"full\" is needed"},
      {"/text_config/first_k_dense_replace", 4,
       "field text_config.first_k_dense_replace: 4; mlp_layer_types[3] is sparse"},
      {"/text_config/hidden_act", "gelu", "field text_config.hidden_act: \"gelu\"; \"silu\" is needed"},
      {"/text_config/qk_rope_head_dim", 64, "field text_config.qk_rope_head_dim: 64; 0 is needed"},
      {"/text_config/qk_head_dim", 320,
       "field text_config.qk_head_dim: 320; qk_nope_head_dim is 256 and there is no rope part"},
      {"/text_config/head_dim", 64, "field text_config.head_dim: 64; 0 is needed"},
      {"/text_config/num_key_value_heads", 8, "field text_config.num_key_value_heads: 8; 64 is needed"},
      {"/text_config/attention_bias", true, "field text_config.attention_bias: true; this model needs false"},
      {"/text_config/attention_dropout", 0.1, "field text_config.attention_dropout: 0.1; 0 is needed"},
      {"/text_config/mla_use_nope", false, "field text_config.mla_use_nope: false; this model needs true"},
      {"/text_config/index_topk", 2047, "field text_config.index_topk: 2047; a multiple of index_kpool = 4 is needed"},
      {"/text_config/index_kpool", nullptr, "field text_config.index_kpool: null; an integer >= 1 is needed"},
      {"/text_config/index_kpool_always_select_tail", 1,
       "field text_config.index_kpool_always_select_tail: 1; true or false is needed"},
      {"/text_config/index_kpool_compress", false,
       "field text_config.index_kpool_compress: false; this model needs true"},
      {"/text_config/mhc", false, "field text_config.mhc: false; this model needs true"},
      {"/text_config/hc_eps", 0, "field text_config.hc_eps: 0; a finite number > 0 is needed"},
      {"/text_config/rms_norm_eps", -1e-5, "field text_config.rms_norm_eps: -1e-05; a finite number > 0 is needed"},
      {"/text_config/rms_norm_eps", "1e-5", "field text_config.rms_norm_eps: \"1e-5\"; a finite number > 0 is needed"},
      {"/text_config/n_group", 5, "field text_config.n_group: 5; a divisor of n_routed_experts = 288 is needed"},
      {"/text_config/topk_group", 2, "field text_config.topk_group: 2; at most n_group = 1 is allowed"},
      {"/text_config/num_experts_per_tok", 289,
       "field text_config.num_experts_per_tok: 289; at most 288 is allowed (topk_group * n_routed_experts / n_group)"},
      {"/text_config/n_shared_experts", 0, "field text_config.n_shared_experts: 0; an integer >= 1 is needed"},
      {"/text_config/scoring_func", "softmax", "field text_config.scoring_func: \"softmax\"; \"sigmoid\" is needed"},
      {"/text_config/topk_method", "greedy", "field text_config.topk_method: \"greedy\"; \"noaux_tc\" is needed"},
      {"/text_config/router_aux_loss_coef", -0.5,
       "field text_config.router_aux_loss_coef: -0.5; a finite number >= 0 is needed"},
      {"/text_config/linear_num_heads", 32,
       "field text_config.linear_num_heads: 32; text_config.linear_attn_config.num_heads is 64"},
      {"/text_config/linear_lower_bound", nullptr,
       "field text_config.linear_lower_bound: null; text_config.linear_attn_config.gate_lower_bound is -5"},
      {"/text_config/linear_attn_config/gate_lower_bound", 5.0,
       "field text_config.linear_attn_config.gate_lower_bound: 5; a finite number < 0, or null, is needed"},
      {"/text_config/linear_attn_config/kda_layers", json::array({0, 1, 2, 3}),
       "field text_config.linear_attn_config.kda_layers: layer 3 is listed; layer_types says otherwise (layers count "
       "from 0)"},
      {"/text_config/linear_attn_config/full_attn_layers", json::array({3, 7}),
       "field text_config.linear_attn_config.full_attn_layers: layer 11 is not listed; layer_types says otherwise "
       "(layers count from 0)"},
      {"/text_config/pad_token_id", 154880,
       "field text_config.pad_token_id: 154880; an integer in 0 to 154879 is needed"},
      {"/text_config/eos_token_id", "</s>", "field text_config.eos_token_id: \"</s>\"; an integer >= 0 is needed"},
      {"/vision_config/num_heads", 15, "field vision_config.num_heads: 15; a divisor of hidden_size = 1024 is needed"},
      {"/vision_config/num_heads", 512,
       "field vision_config.num_heads: 512; heads of a multiple of 4 channels are needed, not 2"},
      {"/vision_config/out_hidden_size", 1536,
       "field vision_config.out_hidden_size: 1536; text_config.hidden_size = 4096 is needed"},
      {"/vision_config/image_size", 450,
       "field vision_config.image_size: 450; a multiple of patch_size = 14 is needed"},
      {"/vision_config/rope_parameters",
       {{"rope_type", "default"}, {"rope_theta", 10000.0}},
       "field vision_config.rope_parameters.rope_type: \"default\"; \"axial\" is needed"},
      {"/vision_config/rope_parameters",
       {{"rope_type", "axial"}},
       "field vision_config.rope_parameters.rope_theta: missing; a finite number > 0 is needed (no class default is "
       "used)"},
      {"/image_token_id", kRemoved,
       "field image_token_id: missing; an integer >= 0 is needed (no class default is used)"},
      {"/video_end_token_id", 154832, "field video_end_token_id: 154832; it is video_start_token_id as well"},
      {"/quantization_config/quant_method", "gptq",
       "field quantization_config.quant_method: \"gptq\"; \"fp8\" is needed"},
      {"/quantization_config/weight_block_size", json::array({128, 64}),
       "field quantization_config.weight_block_size: [128,64]; two equal integers >= 1 are needed"},
      {"/quantization_config/weight_block_size", kRemoved,
       "field quantization_config.weight_block_size: missing; a list of integers is needed (no class default is used)"},
  };
  return cases;
}

TEST(Config, each_malformed_field_has_its_own_message) {
  std::set<std::string> distinct;
  for (const Malformed& wrong : malformed()) {
    EXPECT_EQ(message(wrong.pointer, wrong.value), wrong.message);
    distinct.insert(wrong.message);
  }
  EXPECT_EQ(distinct.size(), malformed().size());
}

TEST(Config, first_fault_in_reading_order_is_reported) {
  json config = changed("/vision_config/num_heads", 15);
  config["text_config"]["hc_eps"] = 0;
  config["text_config"]["vocab_size"] = 0;
  EXPECT_EQ(message_of_text(config.dump()), "field text_config.vocab_size: 0; an integer >= 1 is needed");
}

TEST(Config, duplicate_key_is_an_error_at_any_depth) {
  EXPECT_EQ(message_of_text(R"({"model_type": "a", "model_type": "glm5_next"})"),
            "field model_type: present twice; each field may occur once");
  EXPECT_EQ(message_of_text(R"({"text_config": {"a": [{"b": 1, "b": 1}]}})"),
            "field text_config.a.b: present twice; each field may occur once");
  EXPECT_EQ(message_of_text(R"({"a": {"x": 1}, "b": {"x": 1}})").find("field model_type: missing"), 0U);
}

TEST(Config, text_that_is_not_json_is_an_error) {
  EXPECT_EQ(message_of_text("{\"model_type\": ").find("not JSON ("), 0U);
  EXPECT_EQ(message_of_text("").find("not JSON ("), 0U);
  EXPECT_EQ(message_of_text("{\"rms_norm_eps\": NaN}").find("not JSON ("), 0U);
  EXPECT_EQ(message_of_text("{\"rms_norm_eps\": 1e999}").find("not JSON ("), 0U);
  EXPECT_EQ(message_of_text("[1]"), "holds a JSON array; one JSON object is needed");
}

TEST(Config, number_that_overflows_a_double_is_an_error) {
  std::string text = public_config().dump();
  const std::string field = "\"hc_eps\":1e-06";
  ASSERT_NE(text.find(field), std::string::npos);
  text.replace(text.find(field), field.size(), "\"hc_eps\":1e400");
  EXPECT_EQ(message_of_text(text).find("not JSON ("), 0U);
}

TEST(Config, absent_file_and_folder_are_errors) {
  const auto folder = test_folder();
  for (const auto& file : {folder / "absent.json", folder}) {
    try {
      read_config(file);
      FAIL() << file;
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what()), file.string() + ": cannot be read; a readable JSON file is needed");
    }
  }
}

}  // namespace
}  // namespace assay
