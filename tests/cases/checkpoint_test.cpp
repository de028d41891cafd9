#include "cases/checkpoint.h"

#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "cases/error.h"
#include "public_config.h"

namespace assay {
namespace {

using nlohmann::json;

ModelConfig read(const json& config) { return read_config(write_text(test_folder() / "config.json", config.dump())); }

/// A model of two layers (KDA and dense, DSA and MoE), one MTP layer, no vision.
json small_config() {
  json config = public_config();
  config.erase("vision_config");
  config.erase("quantization_config");
  json& text = config["text_config"];
  text.erase("linear_attn_config");
  const json sizes = {{"vocab_size", 16},
                      {"pad_token_id", 0},
                      {"hidden_size", 8},
                      {"num_hidden_layers", 2},
                      {"intermediate_size", 12},
                      {"moe_intermediate_size", 6},
                      {"n_shared_experts", 2},
                      {"num_attention_heads", 2},
                      {"num_key_value_heads", 2},
                      {"qk_head_dim", 4},
                      {"qk_nope_head_dim", 4},
                      {"v_head_dim", 3},
                      {"q_lora_rank", 5},
                      {"kv_lora_rank", 7},
                      {"index_n_heads", 2},
                      {"index_head_dim", 4},
                      {"index_topk", 4},
                      {"n_routed_experts", 2},
                      {"num_experts_per_tok", 1},
                      {"linear_num_heads", 2},
                      {"linear_head_dim", 4},
                      {"linear_conv_kernel_dim", 4},
                      {"linear_lower_bound", -5.0},
                      {"first_k_dense_replace", 1},
                      {"layer_types", {"linear_attention", "deepseek_sparse_attention"}},
                      {"mlp_layer_types", {"dense", "sparse"}},
                      {"indexer_types", {"full", "full"}}};
  text.update(sizes);
  config["image_token_id"] = 1;
  config["video_start_token_id"] = 2;
  config["video_end_token_id"] = 3;
  return config;
}

std::map<std::string, Tensor> good_tensors(const ModelConfig& config) {
  std::map<std::string, Tensor> tensors;
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    tensors[expected.name] = Tensor::zeros(expected.keep_f32 ? DType::kF32 : DType::kBF16, expected.shape);
  }
  return tensors;
}

/// "name: fault; detail" of every fault of a checkpoint with these tensors.
std::vector<std::string> faults_of(const json& config, const std::map<std::string, Tensor>& tensors) {
  const auto folder = test_folder();
  write_text(folder / "config.json", config.dump());
  write_safetensors(folder / "model.safetensors", tensors);
  std::vector<std::string> lines;
  for (const TensorFault& fault : audit(open_checkpoint(folder))) {
    lines.push_back(fault.name + ": " + fault.fault + "; " + fault.detail);
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(Checkpoint, published_model_has_321323031390_parameters) {  // model.md section 2
  std::int64_t parameters = 0;
  for (const ExpectedTensor& expected : expected_tensors(read(public_config()))) {
    parameters += element_count(expected.shape);
  }
  EXPECT_EQ(parameters, 321'323'031'390);
}

TEST(Checkpoint, published_fp8_repository_has_76108_tensors) {  // 37,338 of them weight_scale_inv, 291 small F32
  std::int64_t tensors = 0, scales = 0, keep_f32 = 0;
  std::set<std::string> names;
  for (const ExpectedTensor& expected : expected_tensors(read(public_config()))) {
    ++tensors;
    scales += expected.may_be_fp8 ? 1 : 0;
    keep_f32 += expected.keep_f32 ? 1 : 0;
    names.insert(expected.name);
  }
  EXPECT_EQ(tensors + scales, 76'108);
  EXPECT_EQ(scales, 37'338);
  EXPECT_EQ(keep_f32, 291);
  EXPECT_EQ(static_cast<std::int64_t>(names.size()), tensors);
}

TEST(Checkpoint, groups_have_the_published_parameter_counts) {  // model.md section 2, counts
  std::int64_t vision = 0, mtp = 0, routed = 0, vision_tensors = 0;
  for (const ExpectedTensor& expected : expected_tensors(read(public_config()))) {
    const std::int64_t size = element_count(expected.shape);
    const bool is_vision = expected.name.rfind("model.visual.", 0) == 0;
    if (is_vision) vision += size;
    vision_tensors += is_vision ? 1 : 0;
    if (expected.name.rfind("model.language_model.layers.45.", 0) == 0) mtp += size;
    if (expected.name.find(".mlp.experts.") != std::string::npos) routed += size;
  }
  EXPECT_EQ(vision, 563'627'008);
  EXPECT_EQ(vision_tensors, 347);
  EXPECT_EQ(mtp, 7'432'592'416);
  EXPECT_EQ(routed, 311'653'564'416);
}

TEST(Checkpoint, mtp_layer_has_no_streams_and_shares_the_head) {
  std::set<std::string> names;
  for (const ExpectedTensor& expected : expected_tensors(read(small_config()))) names.insert(expected.name);
  const std::string mtp = "model.language_model.layers.2.";
  for (const char* name : {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight",
                           "input_layernorm.weight", "self_attn.indexer.wk.weight", "mlp.experts.1.up_proj.weight"}) {
    EXPECT_EQ(names.count(mtp + name), 1U) << name;
  }
  for (const char* name : {"hc_attn_fn", "shared_head.head.weight", "embed_tokens.weight", "self_attn.A_log"}) {
    EXPECT_EQ(names.count(mtp + name), 0U) << name;
  }
}

TEST(Checkpoint, shared_experts_are_as_wide_as_their_number) {
  for (const ExpectedTensor& expected : expected_tensors(read(small_config()))) {
    if (expected.name == "model.language_model.layers.1.mlp.shared_experts.down_proj.weight") {
      EXPECT_EQ(expected.shape, (Shape{8, 12}));
      return;
    }
  }
  FAIL() << "no shared expert";
}

TEST(Checkpoint, peer_checkpoints_have_no_fault) {
  if (!std::filesystem::exists(peer_folder())) GTEST_SKIP() << "no peer records at " << peer_folder();
  for (const char* name : {"kda_dsa", "shared_index_groups", "vision", "long_chunks"}) {
    for (const TensorFault& fault : audit(open_checkpoint(peer_folder() / name))) {
      ADD_FAILURE() << name << " " << fault.name << ": " << fault.fault << "; " << fault.detail;
    }
  }
}

TEST(Checkpoint, complete_small_model_has_no_fault) {
  EXPECT_EQ(faults_of(small_config(), good_tensors(read(small_config()))), Lines{});
}

TEST(Checkpoint, each_kind_of_fault_is_reported_in_name_order) {
  auto tensors = good_tensors(read(small_config()));
  const std::string layer = "model.language_model.layers.0.";
  tensors.erase("lm_head.weight");
  tensors[layer + "self_attn.A_log"] = Tensor::zeros(DType::kBF16, {2});
  tensors[layer + "input_layernorm.weight"] = Tensor::zeros(DType::kI32, {8});
  tensors[layer + "self_attn.o_norm.weight"] = Tensor::zeros(DType::kBF16, {2, 2});
  tensors["model.visual.extra"] = Tensor::zeros(DType::kBF16, {1});
  EXPECT_EQ(faults_of(small_config(), tensors),
            (Lines{"lm_head.weight: missing; a tensor of shape [16, 8] is needed",
                   layer + "input_layernorm.weight: wrong dtype; I32; BF16, F16, F32 or F64 is needed",
                   layer + "self_attn.A_log: wrong dtype; BF16; F32 is needed",
                   layer + "self_attn.o_norm.weight: wrong shape; [2, 2]; [4] is needed",
                   "model.visual.extra: unexpected; BF16 of shape [1]; the config asks for no such tensor"}));
}

TEST(Checkpoint, mtp_tensors_are_unexpected_without_mtp_depth) {
  const auto tensors = good_tensors(read(small_config()));
  json config = small_config();
  config["text_config"]["num_nextn_predict_layers"] = 0;
  const Lines faults = faults_of(config, tensors);
  ASSERT_FALSE(faults.empty());
  for (const std::string& fault : faults) {
    EXPECT_EQ(fault.find("model.language_model.layers.2."), 0U) << fault;
    EXPECT_NE(fault.find(": unexpected; "), std::string::npos) << fault;
  }
}

TEST(Checkpoint, fp8_weight_needs_scales_of_its_blocks) {
  json config = small_config();
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {5, 5}}};
  auto tensors = good_tensors(read(config));
  const std::string weight = "model.language_model.layers.0.mlp.gate_proj.weight";  // [12, 8]
  tensors[weight] = Tensor::zeros(DType::kE4M3, {12, 8});
  EXPECT_EQ(faults_of(config, tensors),
            Lines{weight + "_scale_inv: missing; F32 of shape [3, 2] is needed beside an F8_E4M3 weight"});
  tensors[weight + "_scale_inv"] = Tensor::zeros(DType::kF32, {3, 2});
  EXPECT_EQ(faults_of(config, tensors), Lines{});
  tensors[weight + "_scale_inv"] = Tensor::zeros(DType::kBF16, {2, 3});
  EXPECT_EQ(faults_of(config, tensors), (Lines{weight + "_scale_inv: wrong dtype; BF16; F32 is needed",
                                               weight + "_scale_inv: wrong shape; [2, 3]; [3, 2] is needed"}));
}

TEST(Checkpoint, fp8_is_refused_where_the_model_keeps_bf16) {
  auto tensors = good_tensors(read(small_config()));
  const std::string weight = "model.language_model.layers.0.self_attn.q_proj.weight";  // KDA stays BF16
  tensors[weight] = Tensor::zeros(DType::kE4M3, {8, 8});
  EXPECT_EQ(faults_of(small_config(), tensors),
            Lines{weight + ": wrong dtype; F8_E4M3; BF16, F16, F32 or F64 is needed"});
}

TEST(Checkpoint, scales_beside_a_bf16_weight_are_unexpected) {
  auto tensors = good_tensors(read(small_config()));
  const std::string scale = "model.language_model.layers.0.mlp.up_proj.weight_scale_inv";
  tensors[scale] = Tensor::zeros(DType::kF32, {1, 1});
  EXPECT_EQ(faults_of(small_config(), tensors),
            Lines{scale + ": unexpected; F32 of shape [1, 1]; the config asks for no such tensor"});
}

}  // namespace
}  // namespace assay
