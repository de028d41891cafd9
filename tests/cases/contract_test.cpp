#include "cases/contract.h"

#include <algorithm>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "cases/error.h"
#include "cases/ops/op.h"

namespace assay {
namespace {

using nlohmann::json;

Flags glm_with(const std::vector<std::string>& assignments) {
  Flags flags = Flags::glm();
  for (const std::string& assignment : assignments) flags.set(assignment);
  return flags;
}

Contract contract(const std::string& profile, const std::vector<std::string>& assignments = {}) {
  return Contract::resolve(profile, glm_with(assignments), DType::kBF16);
}

/// The format of "op/value".
std::string format(const Contract& contract, const std::string& point) {
  for (const PointRule& rule : contract.of(point.substr(0, point.find('/'))).points)
    if (kRoundingPoints[rule.point].name == point) return rule.format;
  return "no such point";
}

json attribute(const Contract& contract, const std::string& op, const std::string& name) {
  return contract.of(op).attributes.at(name);
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class Call>
std::string complaint(const Call& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

struct Row {
  const char *point, *megatron, *hf, *serving;
};

class PointOfTheSpecification : public testing::TestWithParam<Row> {};

TEST_P(PointOfTheSpecification, has_the_format_of_each_profile) {
  const Row& row = GetParam();
  EXPECT_EQ(format(contract("megatron"), row.point), row.megatron) << row.point;
  EXPECT_EQ(format(contract("hf"), row.point), row.hf) << row.point;
  EXPECT_EQ(format(contract("serving"), row.point), row.serving) << row.point;
}

// megatron.md 12 and model.md 13, 15, with GLM-5.3-Flash's flags: "post/res mix", "beta", "l2norm", "pooling",
// "w GEMM", "final collapse", "MLA softmax", "RMSNorm", "SwiGLU", "expert combine".
INSTANTIATE_TEST_SUITE_P(
    Differences, PointOfTheSpecification,
    testing::Values(
        Row{"mhc_mapping/h", "none", "none", "none"}, Row{"mhc_aggregate/products", "none", "none", "none"},
        Row{"mhc_aggregate/y", "activation", "activation", "activation"},
        Row{"mhc_mix/coefficients", "none", "activation", "none"}, Row{"mhc_mix/parts", "none", "activation", "none"},
        Row{"mhc_mix/y", "activation", "activation", "activation"}, Row{"mhc_layer/mappings", "none", "none", "none"},
        Row{"stream_contract/sum", "none", "activation", "none"},
        Row{"stream_contract/y", "activation", "activation", "activation"},
        Row{"beta/beta", "none", "activation", "none"}, Row{"l2norm/y", "activation", "none", "activation"},
        Row{"l2norm.backward/normed", "activation", "none", "activation"},
        Row{"kda_conv/y", "activation", "activation", "activation"},
        Row{"gated_rms_norm/y", "activation", "activation", "activation"},
        Row{"kpool_compress/weights", "none", "activation", "none"},
        Row{"kpool_compress/products", "none", "activation", "none"},
        Row{"kpool_compress/pooled", "bf16", "activation", "bf16"},
        Row{"head_weights/product", "none", "activation", "none"},
        Row{"mla_attention/scores", "none", "activation", "none"}, Row{"rms_norm/normed", "none", "activation", "none"},
        Row{"rms_norm.backward/normed", "none", "activation", "none"}, Row{"swiglu/silu", "none", "activation", "none"},
        Row{"combine/product", "none", "activation", "none"}, Row{"combine/partial_sum", "none", "activation", "none"},
        Row{"combine/y", "activation", "activation", "activation"},
        Row{"kda_gate.backward/d_f", "activation", "activation", "activation"}),
    [](const auto& row) {
      std::string name = row.param.point;
      for (char& c : name)
        if (c == '/' || c == '.') c = '_';
      return name;
    });

// megatron.md 2.4, 2.5: everything that the kernel stores is BF16; the products that merge blocks of T and those within
// a chunk are TF32. megatron.md 12, "chunk internals": HF keeps all of them in F32.
TEST(Contract, a_chunk_rounds_what_the_kernel_stores_and_hf_nothing) {
  const std::set<std::string> tf32 = {"delta_rule_chunked/inverse_factors", "delta_rule_chunked.backward/within"};
  const std::set<std::string> results = {"delta_rule_chunked/o", "delta_rule_chunked.backward/d_v"};
  const Contract megatron = contract("megatron"), hf = contract("hf");
  int inside = 0;
  for (const RoundingPoint& point : kRoundingPoints) {
    const std::string name(point.name);
    if (name.rfind("delta_rule_chunked", 0) != 0) continue;
    const bool result = results.count(name) != 0;
    inside += !result;
    EXPECT_EQ(format(megatron, name), tf32.count(name) != 0 ? "tf32" : "activation") << name;
    EXPECT_EQ(format(hf, name), result ? "activation" : "none") << name;
  }
  EXPECT_GE(inside, 18);  // 10 of 2.4 and 8 of 2.5
}

// megatron.md 1.3, 1.5, 1.6: "default: in activation dtype"; "keep-FP32: one cast".
TEST(Contract, mappings_are_rounded_when_they_are_not_kept_in_fp32) {
  const Contract off = contract("megatron", {"mhc_keep_mappings_in_fp32=false"});
  for (const char* point :
       {"mhc_mapping/h", "mhc_aggregate/products", "mhc_mix/parts", "mhc_layer/mappings", "mhc_mix.backward/parts",
        "mhc_aggregate.backward/products", "mhc_aggregate.backward/d_h_pre"}) {
    EXPECT_EQ(format(off, point), "activation") << point;
    EXPECT_EQ(format(contract("megatron"), point), "none") << point;
  }
  for (const char* op : {"mhc_aggregate", "mhc_mix", "mhc_layer", "mhc_aggregate.backward", "mhc_mix.backward"}) {
    EXPECT_EQ(attribute(off, op, "keep_mappings_in_fp32"), false) << op;
    EXPECT_EQ(attribute(contract("megatron"), op, "keep_mappings_in_fp32"), true) << op;
  }
}

TEST(Contract, megatron_s_flags_are_nothing_to_the_other_profiles) {
  for (const char* profile : {"hf", "serving"}) {
    const Contract plain = contract(profile), defaults = Contract::resolve(profile, Flags(), DType::kBF16);
    for (const OpContract& op : plain.ops()) {
      const OpContract& other = defaults.of(op.op);
      EXPECT_EQ(op.attributes, other.attributes) << profile << " " << op.op;
      for (std::size_t i = 0; i < op.points.size(); ++i)
        EXPECT_EQ(op.points[i].format, other.points[i].format) << kRoundingPoints[op.points[i].point].name;
    }
  }
}

// megatron.md 1.3: eps inside the root is layernorm_epsilon (GLM 1e-5), outside it is 1e-6.
TEST(Contract, the_mapping_s_eps_moves_with_its_place) {
  const Contract inside = contract("megatron"), outside = contract("megatron", {"mhc_norm_eps_inside_sqrt=false"});
  for (const char* op : {"mhc_mapping", "mhc_layer", "mhc_mapping.backward"}) {
    EXPECT_EQ(attribute(inside, op, "norm_eps_inside_sqrt"), true) << op;
    EXPECT_EQ(attribute(inside, op, "norm_eps"), 1e-5) << op;
    EXPECT_EQ(attribute(outside, op, "norm_eps_inside_sqrt"), false) << op;
    EXPECT_EQ(attribute(outside, op, "norm_eps"), 1e-6) << op;
    EXPECT_EQ(attribute(contract("hf"), op, "norm_eps"), 1e-5) << op;  // model.md 14
  }
}

// megatron.md 2.3: "lower_bound is forwarded only when kda_safe_gate"; 12: HF has it whenever it is not None.
TEST(Contract, the_lower_bound_reaches_the_gate_only_with_the_safe_gate) {
  const Contract safe = contract("megatron", {"kda_lower_bound=-2.5"});
  const Contract unsafe = contract("megatron", {"kda_safe_gate=false"});
  for (const char* op : {"kda_gate", "kda_gate.backward", "kda_attention"}) {
    EXPECT_EQ(attribute(safe, op, "lower_bound"), -2.5) << op;
    EXPECT_TRUE(attribute(unsafe, op, "lower_bound").is_null()) << op;
    EXPECT_EQ(attribute(Contract::resolve("hf", Flags(), DType::kBF16), op, "lower_bound"), -5.0) << op;
  }
}

TEST(Contract, attributes_follow_their_flags) {
  const struct {
    const char *assignment, *op, *attribute;
    json glm, changed;
  } rows[] = {
      {"mhc_learned_output_contract", "stream_contract", "mode", "mean", "learned"},
      {"mhc_sinkhorn_iterations=7", "sinkhorn", "iterations", 20, 7},
      {"mhc_sinkhorn_iterations=7", "mhc_mapping", "iterations", 20, 7},
      {"mhc_num_residual_streams=2", "stream_expand", "n", 4, 2},
      {"dsa_indexer_kpool=8", "kpool_compress", "kpool", 4, 8},
      {"dsa_indexer_kpool=8", "select_tokens", "kpool", 4, 8},
      {"dsa_indexer_kpool_always_select_tail=false", "select_tokens", "always_select_tail", true, false},
      {"dsa_indexer_scoring_relu=false", "index_scores", "relu", true, false},
      {"dsa_indexer_kpool_fp8=false", "hadamard_fp8", "quantize", true, false},
      {"fp8_power_of_two_scales=false", "quantize_block", "power_of_two", true, false},
      {"fp8_power_of_two_scales=false", "fp8_scale", "power_of_two", true, false},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(attribute(contract("megatron"), row.op, row.attribute), row.glm) << row.assignment << " " << row.op;
    EXPECT_EQ(attribute(contract("megatron", {row.assignment}), row.op, row.attribute), row.changed)
        << row.assignment << " " << row.op;
  }
}

// megatron.md 3.7: with a bf16 output the projection is rounded before its factors.
TEST(Contract, the_dtype_of_the_head_weights_projection_is_a_flag) {
  EXPECT_EQ(format(contract("megatron", {"dsa_indexer_weights_proj_output_dtype=bf16"}), "head_weights/product"),
            "bf16");
  EXPECT_EQ(format(contract("megatron"), "head_weights/product"), "none");
}

// model.md 7.2, 13, 15; model.md 1 (scale = amax / 448 in f32).
TEST(Contract, attributes_differ_between_profiles) {
  EXPECT_EQ(attribute(contract("hf"), "kpool_compress", "rounding"), "hf");
  EXPECT_EQ(attribute(contract("megatron"), "kpool_compress", "rounding"), "bf16");
  EXPECT_EQ(attribute(contract("serving"), "kpool_compress", "rounding"), "bf16");
  EXPECT_EQ(attribute(contract("hf"), "mhc_mix", "keep_mappings_in_fp32"), false);
  EXPECT_EQ(attribute(contract("serving"), "mhc_mix", "keep_mappings_in_fp32"), true);
  EXPECT_EQ(attribute(contract("hf"), "stream_contract", "mean_in_fp32"), false);
  EXPECT_EQ(attribute(contract("megatron"), "stream_contract", "mean_in_fp32"), true);
  EXPECT_EQ(attribute(contract("hf"), "hadamard_fp8", "quantize"), false);
  EXPECT_EQ(attribute(contract("serving"), "hadamard_fp8", "quantize"), true);
  EXPECT_EQ(attribute(contract("serving"), "quantize_block", "power_of_two"), false);
}

TEST(Contract, sums_are_fp32_in_any_order_unless_the_specification_fixes_a_tree) {
  std::set<std::string> fixed;
  for (const std::string& profile : contract_profiles()) {
    const Contract resolved = contract(profile);
    for (const OpContract& op : resolved.ops())
      for (const SumRule& sum : op.sums) {
        EXPECT_EQ(sum.format, "fp32") << op.op;
        if (sum.tree.kind != SumTree::Kind::kAny) fixed.insert(profile + " " + op.op + " " + sum.tree.text());
      }
  }
  // model.md 1 (rescale per 128 of K); megatron.md 2.5 (partial sums per 32-token block).
  EXPECT_EQ(fixed,
            (std::set<std::string>{"megatron linear_fp8 blocks of 128", "hf linear_fp8 blocks of 128",
                                   "serving linear_fp8 blocks of 128", "megatron kda_gate.backward blocks of 32"}));
  // The first sum is the one that every dot of the op follows: the sum for dt_bias has no blocks.
  EXPECT_EQ(contract("megatron").of("kda_gate.backward").sums.front().tree.kind, SumTree::Kind::kAny);
}

TEST(Contract, every_op_and_every_point_has_a_rule_in_every_profile) {
  for (const std::string& profile : contract_profiles()) {
    for (const Flags& flags : {Flags(), Flags::glm()}) {
      const Contract resolved = Contract::resolve(profile, flags, DType::kF32);
      EXPECT_EQ(resolved.profile(), profile);
      EXPECT_EQ(resolved.activation(), DType::kF32);
      EXPECT_EQ(resolved.flags().all(), flags.all());
      ASSERT_EQ(resolved.ops().size(), op_specs().size());
      std::size_t points = 0;
      for (std::size_t i = 0; i < op_specs().size(); ++i) {
        const OpContract& op = resolved.ops()[i];
        EXPECT_EQ(op.op, op_specs()[i].name);
        EXPECT_FALSE(op.source.empty()) << op.op;
        for (const PointRule& rule : op.points) EXPECT_EQ(kRoundingPoints[rule.point].op(), op.op);
        points += op.points.size();
      }
      EXPECT_EQ(points, kRoundingPointCount);
    }
  }
}

// An op with a product of several terms says how it adds them up.
TEST(Contract, matrix_products_and_norms_name_their_sum) {
  for (const char* op : {"linear", "head_linear", "grouped_linear", "linear_fp8", "rms_norm", "mhc_mapping", "router",
                         "head_weights", "index_scores", "delta_rule", "mla_attention", "linear.backward"})
    EXPECT_FALSE(contract("megatron").of(op).sums.empty()) << op;
}

// A fixed attribute must be one that the op accepts: the calls take over its type.
TEST(Contract, fixed_attributes_have_the_type_of_the_op_s) {
  for (const std::string& profile : contract_profiles()) {
    const Contract resolved = contract(profile);
    for (const OpContract& op : resolved.ops()) {
      for (const auto& [name, value] : op.attributes.items()) {
        const auto& specs = op_named(op.op).attributes;
        const auto found =
            std::find_if(specs.begin(), specs.end(), [&, key = name](const auto& spec) { return spec.name == key; });
        ASSERT_NE(found, specs.end()) << op.op << " " << name;
        const bool nullable = found->fallback && found->fallback->is_null();
        const bool fits = found->kind == AttributeKind::kBool      ? value.is_boolean()
                          : found->kind == AttributeKind::kInteger ? value.is_number_integer()
                          : found->kind == AttributeKind::kReal    ? value.is_number()
                                                                   : value.is_string();
        EXPECT_TRUE(fits || (nullable && value.is_null())) << op.op << " " << name << " " << value;
      }
    }
  }
}

TEST(Contract, an_unknown_profile_is_answered_with_the_known_ones) {
  const std::string message = complaint([] { Contract::resolve("megatorn", Flags::glm(), DType::kBF16); });
  for (const char* part : {"megatorn", "megatron", "hf", "serving"}) EXPECT_TRUE(holds(message, part)) << message;
}

TEST(Contract, refused_flags_give_no_contract) {
  const std::string message = complaint([] { contract("megatron", {"mhc_sinkhorn_iterations=0"}); });
  EXPECT_TRUE(holds(message, "mhc_sinkhorn_iterations")) << message;
}

json data_file() {
  std::ifstream stream(ASSAY_SOURCE_DIR "/cases/contracts.json");
  return json::parse(stream);
}

/// What is said of the data file after a change.
template <class Change>
std::string said_of(const Change& change) {
  json file = data_file();
  change(file);
  return complaint([&] { check_contracts(file); });
}

TEST(ContractData, the_file_is_complete) {
  EXPECT_EQ(said_of([](json&) {}), "");
}

TEST(ContractData, a_lacking_or_unknown_name_is_named) {
  EXPECT_TRUE(holds(said_of([](json& file) { file["ops"].erase("swiglu"); }), "swiglu"));
  EXPECT_TRUE(holds(said_of([](json& file) { file["ops"].erase("residual_add.backward"); }), "residual_add.backward"));
  EXPECT_TRUE(holds(said_of([](json& file) { file["ops"]["swiglue"] = json::object(); }), "swiglue"));
  EXPECT_TRUE(holds(said_of([](json& file) { file["ops"]["swiglu"]["points"].erase("silu"); }), "swiglu/silu"));
  EXPECT_TRUE(holds(said_of([](json& file) { file["ops"]["swiglu"]["points"]["sulu"] = "none"; }), "swiglu/sulu"));
  EXPECT_TRUE(holds(said_of([](json& file) { file["ops"]["swiglu"]["point"] = "none"; }), "entry point"));
  EXPECT_TRUE(holds(said_of([](json& file) { file["ops"]["swiglu"] = 1; }), "swiglu"));
}

TEST(ContractData, another_kind_of_file_is_refused) {
  for (const char* text : {"{}", "[]", "1", R"({"assay_contracts": 2, "ops": {}})", R"({"assay_contracts": 1})",
                           R"({"assay_contracts": 1, "ops": []})"}) {
    EXPECT_TRUE(holds(complaint([&] { check_contracts(json::parse(text)); }), "assay_contracts")) << text;
  }
}

TEST(SumTree, any_order_may_add_n_times) {
  for (const std::int64_t n : {0, 1, 2, 31, 128, 4096}) EXPECT_EQ(SumTree{}.depth(n), n);
  EXPECT_EQ(SumTree{}.text(), "any");
}

TEST(SumTree, blocks_add_within_and_then_over) {
  for (const std::int64_t b : {1, 2, 32, 128}) {
    const SumTree tree{SumTree::Kind::kBlocks, b};
    for (const std::int64_t n : {2, 31, 32, 33, 128, 129, 4096})
      EXPECT_EQ(tree.depth(n), std::min(n, b) + (n + b - 1) / b) << n << " in blocks of " << b;
    EXPECT_EQ(tree.text(), "blocks of " + std::to_string(b));
  }
  EXPECT_EQ((SumTree{SumTree::Kind::kBlocks, 128}.depth(4096)), 160);  // 128 within, 32 blocks
}

TEST(SumTree, a_balanced_tree_is_as_deep_as_the_logarithm) {
  const SumTree tree{SumTree::Kind::kPairwise, 0};
  const std::pair<std::int64_t, std::int64_t> depths[] = {{1, 1}, {2, 2}, {3, 3}, {4, 3}, {5, 4}, {128, 8}, {129, 9}};
  for (const auto& [n, depth] : depths) EXPECT_EQ(tree.depth(n), depth) << n;
  EXPECT_EQ(tree.text(), "pairwise");
}

}  // namespace
}  // namespace assay
