#include "cases/flags.h"

#include <set>

#include <gtest/gtest.h>

#include "cases/error.h"

namespace assay {
namespace {

using nlohmann::json;

std::string complaint(const Flags& flags) {
  try {
    flags.check();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

std::string setting(const std::string& assignment) {
  Flags flags;
  try {
    flags.set(assignment);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

Flags glm_with(const std::vector<std::string>& assignments) {
  Flags flags = Flags::glm();
  for (const std::string& assignment : assignments) flags.set(assignment);
  return flags;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Row {
  const char* name;
  json fallback, glm;
};

// megatron.md 0.1, 1.1, 2.1, 3.1, 3.6, 5.1, 5.3 and 9 (the provider).
TEST(Flags, defaults_and_glm_values_are_the_specification_s) {
  const Row rows[] = {
      {"mhc_num_residual_streams", 4, 4},
      {"mhc_sinkhorn_iterations", 20, 20},
      {"mhc_init_gating_factor", 0.01, 0.01},
      {"mhc_norm_eps_inside_sqrt", false, true},
      {"mhc_keep_mappings_in_fp32", false, true},
      {"mhc_learned_output_contract", true, false},
      {"use_fused_mhc", false, false},
      {"enable_mhc_connections", false, true},
      {"kda_two_stage_gates", false, true},
      {"kda_safe_gate", false, true},
      {"kda_lower_bound", nullptr, -5.0},
      {"kda_disable_fp8", false, true},
      {"gdn_pre_gated_delta_rule_fusion", false, false},
      {"mla_disable_attention_fp8", false, true},
      {"dsa_indexer_kpool", 1, 4},
      {"dsa_indexer_kpool_always_select_tail", false, true},
      {"dsa_indexer_kpool_fp8", false, true},
      {"dsa_indexer_rotate_activation", true, false},
      {"dsa_indexer_scoring_relu", true, true},
      {"dsa_indexer_k_norm_epsilon", nullptr, 1e-6},
      {"dsa_indexer_k_norm_fp32", false, false},
      {"dsa_indexer_topk_freq", 1, 1},
      {"dsa_indexer_skip_topk_offset", 0, 0},
      {"keep_mtp_spec_in_bf16", false, true},
      {"fp8_power_of_two_scales", true, true},
  };
  const Flags defaults, glm = Flags::glm();
  for (const Row& row : rows) {
    EXPECT_EQ(defaults.value(row.name), row.fallback) << row.name;
    EXPECT_EQ(glm.value(row.name), row.glm) << row.name;
  }
  EXPECT_EQ(glm.value("dsa_indexer_loss_coeff"), 0.0);
  EXPECT_EQ(glm.value("dsa_indexer_weights_proj_output_dtype"), "fp32");  // megatron.md 3.2
}

TEST(Flags, every_flag_has_a_meaning_a_source_and_a_name_of_its_own) {
  std::set<std::string> names;
  for (const FlagSpec& flag : flag_specs()) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
    EXPECT_FALSE(flag.meaning.empty()) << flag.name;
    EXPECT_EQ(flag.source.rfind("megatron.md ", 0), 0U) << flag.name;
  }
  EXPECT_EQ(Flags().all().size(), names.size());
}

TEST(Flags, defaults_and_glm_values_are_not_refused) {
  EXPECT_EQ(complaint(Flags()), "");
  EXPECT_EQ(complaint(Flags::glm()), "");
}

TEST(Flags, a_word_alone_switches_on) {
  Flags flags;
  flags.set("kda_safe_gate");
  EXPECT_TRUE(flags.on("kda_safe_gate"));
  flags.set("kda_safe_gate=false");
  EXPECT_FALSE(flags.on("kda_safe_gate"));
  flags.set("kda_lower_bound=-2.5");
  EXPECT_EQ(flags.value("kda_lower_bound"), -2.5);
  flags.set("kda_lower_bound=null");
  EXPECT_TRUE(flags.value("kda_lower_bound").is_null());
  flags.set("dsa_indexer_weights_proj_output_dtype=fp32");
  EXPECT_EQ(flags.value("dsa_indexer_weights_proj_output_dtype"), "fp32");
}

// megatron.md 5.3: "later name mla_proj_disable_quantization".
TEST(Flags, both_names_of_the_mla_switch_are_one_flag) {
  Flags flags;
  flags.set("mla_proj_disable_quantization");
  EXPECT_TRUE(flags.on("mla_disable_attention_fp8"));
  EXPECT_TRUE(flags.on("mla_proj_disable_quantization"));
  EXPECT_EQ(flags.all().size(), flag_specs().size());
}

TEST(Flags, an_unknown_name_is_answered_with_the_names_of_its_family) {
  const std::string message = setting("kda_save_gate");
  EXPECT_TRUE(holds(message, "kda_save_gate")) << message;
  EXPECT_TRUE(holds(message, "kda_safe_gate")) << message;
  EXPECT_FALSE(holds(message, "mhc_")) << message;
  EXPECT_TRUE(holds(setting("zeta=1"), "assay list flags")) << setting("zeta=1");
  EXPECT_THROW(Flags().value("zeta"), InputError);
}

TEST(Flags, a_value_of_another_type_is_refused_with_the_flag_and_the_type) {
  const struct {
    const char *assignment, *flag, *allowed;
  } rows[] = {
      {"kda_safe_gate=1", "kda_safe_gate", "true or false"},
      {"kda_safe_gate=yes", "kda_safe_gate", "true or false"},
      {"kda_safe_gate=", "kda_safe_gate", "true or false"},
      {"mhc_sinkhorn_iterations=20.5", "mhc_sinkhorn_iterations", "an integer"},
      {"mhc_sinkhorn_iterations", "mhc_sinkhorn_iterations", "an integer"},
      {"kda_lower_bound=true", "kda_lower_bound", "a number or null"},
      {"kda_lower_bound=nan", "kda_lower_bound", "a number or null"},
      {"dsa_indexer_loss_coeff=null", "dsa_indexer_loss_coeff", "a number"},
  };
  for (const auto& row : rows) {
    const std::string message = setting(row.assignment);
    EXPECT_TRUE(holds(message, row.flag)) << row.assignment << ": " << message;
    EXPECT_TRUE(holds(message, row.allowed)) << row.assignment << ": " << message;
  }
}

struct Refusal {
  std::vector<std::string> assignments;
  std::vector<const char*> named;
};

class Refused : public testing::TestWithParam<Refusal> {};

TEST_P(Refused, names_the_flags_and_the_rule) {
  const std::string message = complaint(glm_with(GetParam().assignments));
  ASSERT_NE(message, "");
  for (const char* part : GetParam().named) EXPECT_TRUE(holds(message, part)) << part << " in: " << message;
}

// megatron.md 1.1 (fused, iterations, gating factor, fp32 residual), 2.1 (safe gate, fusion), 3.6 (loss), 3.7 (dtype).
INSTANTIATE_TEST_SUITE_P(
    Specification, Refused,
    testing::Values(
        Refusal{{"use_fused_mhc", "mhc_keep_mappings_in_fp32=false"}, {"use_fused_mhc", "mhc_norm_eps_inside_sqrt"}},
        Refusal{{"use_fused_mhc", "mhc_norm_eps_inside_sqrt=false"}, {"use_fused_mhc", "mhc_keep_mappings_in_fp32"}},
        Refusal{{"fp32_residual_connection"}, {"enable_mhc_connections", "fp32_residual_connection"}},
        Refusal{{"mhc_sinkhorn_iterations=0"}, {"mhc_sinkhorn_iterations", "at least 1"}},
        Refusal{{"mhc_init_gating_factor=-0.01"}, {"mhc_init_gating_factor", "at least 0"}},
        Refusal{{"dsa_indexer_kpool=0"}, {"dsa_indexer_kpool", "at least 1"}},
        Refusal{{"kda_lower_bound=null"}, {"kda_safe_gate", "-5 <= kda_lower_bound < 0"}},
        Refusal{{"kda_lower_bound=-5.5"}, {"-5.5", "-5 <= kda_lower_bound < 0"}},
        Refusal{{"kda_lower_bound=0"}, {"kda_lower_bound", "-5 <= kda_lower_bound < 0"}},
        Refusal{{"gdn_pre_gated_delta_rule_fusion"}, {"gdn_pre_gated_delta_rule_fusion"}},
        Refusal{{"dsa_indexer_loss_coeff=0.01"}, {"dsa_indexer_loss_coeff", "dsa_indexer_kpool"}},
        Refusal{{"dsa_indexer_weights_proj_output_dtype=fp16"}, {"fp16", "bf16 or fp32"}}));

TEST(Flags, what_is_refused_only_together_is_allowed_alone) {
  EXPECT_EQ(complaint(glm_with({"use_fused_mhc", "mhc_norm_eps_inside_sqrt=false", "mhc_keep_mappings_in_fp32=false"})),
            "");
  EXPECT_EQ(complaint(glm_with({"fp32_residual_connection", "enable_mhc_connections=false"})), "");
  EXPECT_EQ(complaint(glm_with({"kda_safe_gate=false", "kda_lower_bound=null"})), "");
  EXPECT_EQ(complaint(glm_with({"kda_lower_bound=-5"})), "");
  EXPECT_EQ(complaint(glm_with({"dsa_indexer_loss_coeff=0.01", "dsa_indexer_kpool=1"})), "");
  EXPECT_EQ(complaint(glm_with({"mhc_sinkhorn_iterations=1"})), "");
  EXPECT_EQ(complaint(glm_with({"mhc_init_gating_factor=0.0"})), "");
}

}  // namespace
}  // namespace assay
