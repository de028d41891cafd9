#include "cases/fp8.h"

#include <gtest/gtest.h>

#include "cases/error.h"
#include "cases/flags.h"

namespace assay {
namespace {

using nlohmann::json;

std::string refusal(std::int64_t tokens, std::int64_t tp_size) {
  try {
    check_fp8_tokens(tokens, tp_size);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Fp8, T67_TokenAlignment) {
  EXPECT_EQ(alignment_fault("T", 4088, 2, kFp8TokenMultiple), "T=4088, TP=2: 2044 % 8 = 4");
  EXPECT_EQ(alignment_fault("T", 4080, 4, kFp8TokenMultiple), "T=4080, TP=4: 1020 % 8 = 4");
  for (const std::int64_t tp : {1, 2, 4, 8}) EXPECT_EQ(alignment_fault("T", 4096, tp, kFp8TokenMultiple), std::nullopt);
  // What a check of T alone, before the tokens are spread over the ranks, lets through.
  EXPECT_EQ(4088 % kFp8TokenMultiple, 0);
  EXPECT_EQ(4080 % kFp8TokenMultiple, 0);
  EXPECT_EQ(refusal(4088, 2), "FP8 tokens: T=4088, TP=2: 2044 % 8 = 4; pad to 4096");
  EXPECT_EQ(refusal(4080, 4), "FP8 tokens: T=4080, TP=4: 1020 % 8 = 4; pad to 4096");
  EXPECT_EQ(refusal(4096, 2), "");
  EXPECT_EQ(refusal(4095, 2), "FP8 tokens: T=4095, TP=2: 4095 % 2 = 1; pad to 4096");
  for (std::int64_t tokens = 0; tokens < 300; ++tokens) {
    const std::int64_t padded = padded_fp8_tokens(tokens, 3);
    EXPECT_EQ(refusal(padded, 3), "");
    EXPECT_GE(padded, tokens);
    EXPECT_LT(padded, tokens + 3 * kFp8TokenMultiple);
  }
  EXPECT_THROW(check_fp8_tokens(16, 0), InputError);
}

TEST(Fp8, padding_is_16_and_32_under_mxfp8) {
  for (const char* recipe : {"delayed", "tensorwise", "blockwise"}) EXPECT_EQ(fp8_padding(recipe), 16);
  EXPECT_EQ(fp8_padding("mxfp8"), 32);
  EXPECT_THROW(fp8_padding("nvfp4"), InputError);
}

TEST(Fp8, the_64_rows_of_KDA_beta_allow_at_most_4_tensor_parallel_ranks) {
  for (const std::int64_t tp : {1, 2, 4})
    EXPECT_EQ(alignment_fault("rows", 64, tp, fp8_padding("blockwise")), std::nullopt);
  EXPECT_EQ(alignment_fault("rows", 64, 8, fp8_padding("blockwise")), "rows=64, TP=8: 8 % 16 = 8");
  EXPECT_EQ(alignment_fault("rows", 64, 4, fp8_padding("mxfp8")), "rows=64, TP=4: 16 % 32 = 16");
}

json flags(bool kda, bool mla, bool mtp) {
  return {{"kda_disable_fp8", kda}, {"mla_disable_attention_fp8", mla}, {"keep_mtp_spec_in_bf16", mtp}};
}

TEST(Fp8, each_flag_moves_its_own_modules_and_no_others) {
  const std::string kda = "decoder.layers.2.self_attention.", mla = "decoder.layers.6.self_attention.";
  const std::string mtp = "mtp.layers.0.mtp_model_layer.";
  const std::vector<std::string> of_kda{"in_proj",  "beta_proj", "f_a_proj", "f_b_proj",
                                        "g_a_proj", "g_b_proj",  "out_proj"};
  const std::vector<std::string> of_mla{"linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_proj"};
  for (int bits = 0; bits < 8; ++bits) {
    const bool kda_off = bits & 1, mla_off = bits & 2, mtp_off = bits & 4;
    const json given = flags(kda_off, mla_off, mtp_off);
    const auto quantised = [&](const std::string& name) { return fp8_placement(name, given).quantised; };
    for (const std::string& name : of_kda) EXPECT_EQ(quantised(kda + name), !kda_off) << name;
    for (const std::string& name : of_mla) EXPECT_EQ(quantised(mla + name), !mla_off) << name;
    EXPECT_EQ(quantised(mtp + "linear_proj"), !mtp_off && !mla_off);
    EXPECT_EQ(quantised(mtp + "mlp.experts.linear_fc1"), !mtp_off);
    EXPECT_EQ(quantised("mtp.layers.0.eh_proj"), !mtp_off);
    for (const char* name : {"decoder.layers.7.mlp.experts.linear_fc1",
                             "decoder.layers.7.mlp.shared_experts.linear_fc2", "decoder.layers.1.mlp.linear_fc1"})
      EXPECT_TRUE(quantised(name)) << name;
    for (const char* name :
         {"decoder.layers.6.self_attention.core_attention.indexer.linear_wk",
          "decoder.layers.6.self_attention.core_attention.indexer.linear_weights_proj",
          "decoder.layers.6.self_attention.linear_kv_up_proj", "decoder.layers.7.mlp.router",
          "decoder.layers.7.hyper_connection.mapping_proj", "mtp.layers.0.hyper_connection.mapping_proj",
          "embedding.word_embeddings", "output_layer", "visual.blocks.0.mlp.linear_fc1"})
      EXPECT_FALSE(quantised(name)) << name;
  }
}

TEST(Fp8, GLM_keeps_only_experts_and_MLPs_in_FP8) {
  const json glm = Flags::glm().all();
  for (const char* name : {"decoder.layers.0.self_attention.in_proj", "decoder.layers.6.self_attention.linear_proj",
                           "mtp.layers.0.mtp_model_layer.mlp.experts.linear_fc1"})
    EXPECT_FALSE(fp8_placement(name, glm).quantised) << name;
  for (const char* name : {"decoder.layers.1.mlp.linear_fc1", "decoder.layers.7.mlp.experts.linear_fc2",
                           "decoder.layers.7.mlp.shared_experts.linear_fc1"})
    EXPECT_TRUE(fp8_placement(name, glm).quantised) << name;
  const json defaults = Flags().all();
  EXPECT_TRUE(fp8_placement("decoder.layers.0.self_attention.in_proj", defaults).quantised);
}

TEST(Fp8, a_placement_says_why) {
  EXPECT_EQ(fp8_placement("in_proj", flags(true, false, true)).reason, "KDA projection: kda_disable_fp8 is true");
  EXPECT_EQ(fp8_placement("linear_proj", {{"mla_proj_disable_quantization", false}}).reason,
            "MLA projection: mla_proj_disable_quantization is false");
  EXPECT_EQ(fp8_placement("mtp.eh_proj", flags(false, false, true)).reason,
            "multi-token prediction: keep_mtp_spec_in_bf16 is true");
  EXPECT_THROW(fp8_placement("decoder.layers.0.A_log", flags(false, false, false)), InputError);
  EXPECT_THROW(fp8_placement("in_proj", json::object()), InputError);
  EXPECT_THROW(fp8_placement("in_proj", {{"kda_disable_fp8", 1}}), InputError);
}

TEST(Fp8, only_backward_gradients_are_guarded) {
  const BlockRecipe recipe;
  const BlockQuantizer input = block_quantizer(recipe, QuantizerRole::kForwardInput);
  const BlockQuantizer weight = block_quantizer(recipe, QuantizerRole::kForwardWeight);
  const BlockQuantizer gradient = block_quantizer(recipe, QuantizerRole::kBackwardGradient);
  EXPECT_EQ(attributes_of(input), (json{{"block_rows", 1},
                                        {"block_columns", 128},
                                        {"format", "e4m3"},
                                        {"power_of_two", true},
                                        {"amax_epsilon", 0.0}}));
  EXPECT_EQ(attributes_of(weight), (json{{"block_rows", 128},
                                         {"block_columns", 128},
                                         {"format", "e4m3"},
                                         {"power_of_two", true},
                                         {"amax_epsilon", 0.0}}));
  EXPECT_EQ(attributes_of(gradient), (json{{"block_rows", 1},
                                           {"block_columns", 128},
                                           {"format", "e5m2"},
                                           {"power_of_two", true},
                                           {"amax_epsilon", 1e-12}}));
  const BlockRecipe plain{.hybrid = false, .power_of_two = false, .guard_backward_gradient = false};
  const BlockQuantizer unguarded = block_quantizer(plain, QuantizerRole::kBackwardGradient);
  EXPECT_EQ(unguarded.amax_epsilon, 0.0);
  EXPECT_EQ(unguarded.format, &e4m3());
  EXPECT_FALSE(unguarded.power_of_two);
}

}  // namespace
}  // namespace assay
