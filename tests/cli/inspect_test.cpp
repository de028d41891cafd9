#include <gtest/gtest.h>

#include <functional>
#include <map>

#include <nlohmann/json.hpp>

#include "cases/checkpoint.h"
#include "program.h"

namespace assay::test {
namespace {

using nlohmann::json;

/// A model of two layers (one of each kind), small enough to write.
json config() {
  return {{"model_type", "glm5_next"},
          {"image_token_id", 60},
          {"video_start_token_id", 61},
          {"video_end_token_id", 62},
          {"tie_word_embeddings", false},
          {"text_config",
           {{"model_type", "glm5_next_text"},
            {"vocab_size", 64},
            {"hidden_size", 16},
            {"num_hidden_layers", 2},
            {"intermediate_size", 24},
            {"moe_intermediate_size", 8},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 2},
            {"qk_nope_head_dim", 8},
            {"qk_rope_head_dim", 0},
            {"qk_head_dim", 8},
            {"v_head_dim", 8},
            {"q_lora_rank", 8},
            {"kv_lora_rank", 8},
            {"index_n_heads", 2},
            {"index_head_dim", 8},
            {"index_topk", 8},
            {"index_kpool", 4},
            {"index_kpool_always_select_tail", true},
            {"indexer_types", {"full", "full"}},
            {"linear_num_heads", 2},
            {"linear_head_dim", 8},
            {"linear_conv_kernel_dim", 4},
            {"linear_lower_bound", -5.0},
            {"hc_mult", 4},
            {"hc_eps", 1e-6},
            {"hc_sinkhorn_iters", 20},
            {"rms_norm_eps", 1e-5},
            {"swiglu_limit", 10.0},
            {"hidden_act", "silu"},
            {"attention_bias", false},
            {"routed_scaling_factor", 2.5},
            {"router_aux_loss_coef", 0.001},
            {"n_routed_experts", 4},
            {"n_shared_experts", 1},
            {"num_experts_per_tok", 2},
            {"n_group", 1},
            {"topk_group", 1},
            {"norm_topk_prob", true},
            {"pad_token_id", 0},
            {"max_position_embeddings", 1024},
            {"tie_word_embeddings", false},
            {"layer_types", {"linear_attention", "deepseek_sparse_attention"}},
            {"mlp_layer_types", {"dense", "sparse"}}}}};
}

using Tensors = std::map<std::string, Tensor>;

/// Writes the checkpoint after `change`.
void write_checkpoint(const Folder& folder, const json& document, const std::function<void(Tensors&)>& change) {
  const std::string file = folder.write("config.json", document.dump());
  Tensors tensors;
  for (const ExpectedTensor& expected : expected_tensors(read_config(file))) {
    tensors[expected.name] = Tensor::zeros(expected.keep_f32 ? DType::kF32 : DType::kBF16, expected.shape);
  }
  change(tensors);
  write_safetensors(folder.path() / "model.safetensors", tensors);
}

Outcome inspect(const Folder& folder, const std::string& options = "") {
  return run("inspect checkpoint '" + folder.path().string() + "' " + options);
}

const char* const kText = "model.language_model.";

TEST(Inspect, a_complete_checkpoint_is_status_0) {
  const Folder folder;
  write_checkpoint(folder, config(), [](Tensors&) {});
  const Outcome outcome = inspect(folder);
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("complete: every tensor"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.err, "");
}

// Counts by hand from model.md section 2 with the sizes above.
TEST(Inspect, parameters_are_counted_per_group_and_dtype) {
  const Folder folder;
  write_checkpoint(folder, config(), [](Tensors&) {});
  const json report = json::parse(inspect(folder, "--json").out);
  const json& groups = report.at("groups");
  EXPECT_EQ(groups.at("embedding").at("parameters"), 2 * 64 * 16);
  EXPECT_EQ(groups.at("norms").at("parameters"), (2 * 2 + 1) * 16);
  EXPECT_EQ(groups.at("mHC").at("parameters"), 2 * 2 * (24 * 64 + 24 + 3));
  EXPECT_EQ(groups.at("KDA").at("parameters"),
            3 * (16 * 16 + 16 * 4) + 2 * (8 * 16 + 16 * 8) + 2 * 16 + 2 + 16 + 8 + 16 * 16);
  EXPECT_EQ(groups.at("MLA + indexer").at("parameters"),
            8 * 16 + 8 + 16 * 8 + 8 * 16 + 8 + 32 * 8 + 16 * 16 +    // attention
                16 * 8 + 8 * 16 + 8 + 8 + 2 * 16 + 8 * 16 + 4 * 8);  // indexer
  EXPECT_EQ(groups.at("dense MLP").at("parameters"), 3 * 24 * 16);
  EXPECT_EQ(groups.at("router").at("parameters"), 4 * 16 + 4);
  EXPECT_EQ(groups.at("shared experts").at("parameters"), 3 * 8 * 16);
  EXPECT_EQ(groups.at("routed experts").at("parameters"), 4 * 3 * 8 * 16);
  EXPECT_EQ(groups.at("MTP").at("tensors"), 0);
  EXPECT_EQ(groups.at("vision").at("tensors"), 0);
  EXPECT_FALSE(groups.contains("other"));
  std::int64_t parameters = 0, bytes = 0;
  for (const json& total : groups) parameters += total.at("parameters").get<std::int64_t>();
  for (const json& total : report.at("dtypes")) bytes += total.at("bytes").get<std::int64_t>();
  EXPECT_EQ(report.at("parameters"), parameters);
  EXPECT_EQ(report.at("bytes"), bytes);
  EXPECT_EQ(report.at("dtypes").size(), 2U);
  EXPECT_FALSE(report.contains("tensor_list"));
}

TEST(Inspect, tensors_are_listed_when_asked_for) {
  const Folder folder;
  write_checkpoint(folder, config(), [](Tensors&) {});
  EXPECT_NE(inspect(folder, "--tensors").out.find("lm_head.weight BF16 [64, 16] 1024\n"), std::string::npos);
  const json report = json::parse(inspect(folder, "--tensors --json").out);
  EXPECT_EQ(report.at("tensor_list").size(), report.at("tensors"));
  EXPECT_EQ(report.at("tensor_list").at(0).at("group"), "embedding");
}

TEST(Inspect, mtp_and_fp8_tensors_have_their_place) {
  const Folder folder;
  json document = config();
  document["text_config"]["num_nextn_predict_layers"] = 1;
  const std::string weight = std::string(kText) + "layers.0.mlp.up_proj.weight";
  write_checkpoint(folder, document, [&](Tensors& tensors) {
    tensors[weight] = Tensor::zeros(DType::kE4M3, {24, 16});
    tensors[weight + "_scale_inv"] = Tensor::zeros(DType::kF32, {1, 1});
  });
  const Outcome outcome = inspect(folder, "--json");
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const json groups = json::parse(outcome.out).at("groups");
  EXPECT_GT(groups.at("MTP").at("tensors"), 0);
  EXPECT_EQ(groups.at("dense MLP").at("tensors"), 4);
  EXPECT_EQ(groups.at("dense MLP").at("parameters"), 3 * 24 * 16);
}

TEST(Inspect, faults_are_named_and_status_1) {
  const Folder folder;
  const std::string prefix = std::string(kText) + "layers.0.";
  write_checkpoint(folder, config(), [&](Tensors& tensors) {
    tensors.erase("lm_head.weight");
    tensors["lm_head.wieght"] = Tensor::zeros(DType::kBF16, {64, 16});
    tensors[prefix + "self_attn.A_log"] = Tensor::zeros(DType::kBF16, {2});
    tensors[prefix + "mlp.up_proj.weight"] = Tensor::zeros(DType::kBF16, {16, 24});
  });
  const Outcome outcome = inspect(folder);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.out.find("missing: lm_head.weight: "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("unexpected: lm_head.wieght: "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("wrong dtype: " + prefix + "self_attn.A_log: BF16; F32"), std::string::npos);
  EXPECT_NE(outcome.out.find("wrong shape: " + prefix + "mlp.up_proj.weight: [16, 24]; [24, 16]"), std::string::npos);
  EXPECT_NE(outcome.out.find("\n4 faults\n"), std::string::npos) << outcome.out;
  const Outcome as_json = inspect(folder, "--json");
  EXPECT_EQ(as_json.status, 1);
  EXPECT_EQ(json::parse(as_json.out).at("faults").size(), 4U);
}

TEST(Inspect, unknown_config_fields_are_shown_and_no_fault) {
  const Folder folder;
  json document = config();
  document["text_config"]["hidden_szie"] = 16;
  write_checkpoint(folder, document, [](Tensors&) {});
  const Outcome outcome = inspect(folder);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("unknown config field: text_config.hidden_szie\n"), std::string::npos) << outcome.out;
  EXPECT_EQ(json::parse(inspect(folder, "--json").out).at("unknown_fields"), json({"text_config.hidden_szie"}));
}

TEST(Inspect, what_cannot_be_read_is_one_line_and_status_2) {
  const Folder folder;
  const auto refused = [&](const std::string& part) {
    const Outcome outcome = inspect(folder);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(is_complaint(outcome.err, part)) << outcome.err;
  };
  refused("config.json: cannot be read");
  folder.write("config.json", "{");
  refused("config.json: not JSON");
  json document = config();
  document["text_config"].erase("hidden_size");
  folder.write("config.json", document.dump());
  refused("hidden_size");
  folder.write("config.json", config().dump());
  refused("model.safetensors");
  folder.write("model.safetensors", "short");
  refused("model.safetensors");
  folder.write("model.safetensors", std::string("\x02\0\0\0\0\0\0\0{}x", 11));
  refused("model.safetensors");
}

TEST(Inspect, bad_command_lines_are_status_2) {
  for (const char* words : {"inspect", "inspect trace", "inspect checkpoint", "inspect checkpoint a b",
                            "inspect checkpoint . --tensor", "inspect --json checkpoint ."}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.status, 2) << words;
    EXPECT_TRUE(is_complaint(outcome.err, "")) << words << ": " << outcome.err;
  }
}

}  // namespace
}  // namespace assay::test
