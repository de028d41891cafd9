#include "cases/ops/op.h"

#include <limits>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "cases/error.h"
#include "cases/ops/dims.h"

namespace assay {
namespace {

using nlohmann::json;
using Inputs = std::map<std::string, Tensor>;

Tensor real(Shape shape) { return Tensor::zeros(DType::kBF16, std::move(shape)); }
Tensor ids(Shape shape) { return Tensor::zeros(DType::kI64, std::move(shape)); }

OpCall call(const std::string& op, const json& attributes, Inputs inputs, std::string path = "") {
  return make_call(op_named(op), attributes, std::move(inputs), std::move(path));
}

std::string message(const std::string& op, const json& attributes, Inputs inputs, std::string path = "") {
  try {
    call(op, attributes, std::move(inputs), std::move(path));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

const OperandSpec& output(const OpCall& made, const std::string& name) {
  for (const OperandSpec& spec : made.spec->outputs) {
    if (spec.name == name) return spec;
  }
  throw InputError("no output " + name);
}

std::optional<Shape> shape(const OpCall& made, const std::string& name) {
  return output_shape(made, output(made, name));
}

TEST(Op, every_op_of_the_catalogue_is_described) {
  std::set<std::string> names;
  for (const OpSpec& spec : op_specs()) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    for (const std::string& text : {spec.summary, spec.source}) {
      EXPECT_FALSE(text.empty()) << spec.name;
    }
    EXPECT_FALSE(spec.outputs.empty()) << spec.name;
    for (const auto& attribute : spec.attributes) EXPECT_FALSE(attribute.meaning.empty()) << spec.name;
    for (const auto* operands : {&spec.inputs, &spec.outputs}) {
      for (const OperandSpec& operand : *operands) {
        EXPECT_FALSE(operand.meaning.empty()) << spec.name << " " << operand.name;
        for (const std::string& word : dimension_words(operand.dims)) {
          if (word != "...") DimensionWord(word).value({});  // aborts on a malformed word
        }
      }
    }
  }
  EXPECT_EQ(names.size(), 51U + 40U);
}

TEST(Op, defaults_have_the_kind_of_their_attribute) {
  for (const OpSpec& spec : op_specs()) {
    for (const AttributeSpec& attribute : spec.attributes) {
      if (!attribute.fallback || attribute.fallback->is_null()) continue;
      const json& value = *attribute.fallback;
      const bool fits = attribute.kind == AttributeKind::kInteger ? value.is_number_integer()
                        : attribute.kind == AttributeKind::kReal  ? value.is_number()
                        : attribute.kind == AttributeKind::kBool  ? value.is_boolean()
                                                                  : value.is_string();
      EXPECT_TRUE(fits) << spec.name << " " << attribute.name << " " << value;
    }
  }
}

TEST(Op, unknown_op_names_the_nearest) {
  try {
    op_named("rms_nrm");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()).find("op rms_nrm: unknown; nearest: rms_norm, "), 0U) << error.what();
  }
}

TEST(Op, defaults_and_nulls_complete_the_attributes) {
  const OpCall made = call("delta_rule_chunked", json::object(),
                           {{"q", real({6, 2, 4})},
                            {"k", real({6, 2, 4})},
                            {"v", real({6, 4, 3})},
                            {"g", real({6, 4, 4})},
                            {"beta", real({6, 4})},
                            {"cu_seqlens", ids({3})}},
                           "layers.0.attn.delta_rule");
  EXPECT_EQ(made.attributes, (json{{"scale", nullptr}, {"chunk", 64}}));
  EXPECT_EQ(made.path, "layers.0.attn.delta_rule");
  EXPECT_EQ(made.dims.at("S"), 2);  // solved from S+1
  EXPECT_EQ(shape(made, "final_state"), (Shape{2, 4, 4, 3}));
  EXPECT_EQ(shape(made, "o"), (Shape{6, 4, 3}));
}

TEST(Op, without_documents_the_number_of_states_stays_unbound) {
  const OpCall made = call("delta_rule", {{"scale", 0.5}},
                           {{"q", real({6, 2, 4})},
                            {"k", real({6, 2, 4})},
                            {"v", real({6, 2, 3})},
                            {"g", real({6, 2, 4})},
                            {"beta", real({6, 2})}});
  EXPECT_EQ(made.dims.count("S"), 0U);
  EXPECT_EQ(shape(made, "final_state"), std::nullopt);
}

TEST(Op, null_attributes_mean_all_defaults) {
  EXPECT_EQ(call("l2norm", nullptr, {{"x", real({2, 4})}}).attributes, (json{{"eps", 1e-6}}));
}

TEST(Op, expressions_are_checked_against_bound_symbols) {
  const json attributes = {{"norm_eps", 1e-5}};
  const Inputs good = {{"x", real({3, 4, 5})}, {"weight", real({24, 20})}, {"alpha", real({3})}, {"bias", real({24})}};
  const OpCall made = call("mhc_mapping", attributes, good);
  EXPECT_EQ(made.dims.at("n"), 4);
  EXPECT_EQ(shape(made, "projection"), (Shape{3, 24}));
  EXPECT_EQ(shape(made, "inverse_rms"), (Shape{3, 1}));
  Inputs wrong = good;
  wrong["weight"] = real({23, 20});
  EXPECT_EQ(message("mhc_mapping", attributes, wrong),
            "op mhc_mapping: operand weight: dimension 0 (n*n+2*n) is 23; 24 is needed");
  wrong = good;
  wrong["alpha"] = real({4});
  EXPECT_EQ(message("mhc_mapping", attributes, wrong),
            "op mhc_mapping: operand alpha: dimension 0 (3) is 4; 3 is needed");
}

TEST(Op, differences_and_quotients_are_understood) {
  const Inputs inputs = {{"u", real({5, 6})}, {"weight", real({6, 4})}, {"initial", real({4, 6})}};
  EXPECT_EQ(message("kda_conv", {}, inputs), "op kda_conv: operand initial: dimension 0 (W-1) is 4; 3 is needed");
  const Inputs fp8 = {{"codes", Tensor::zeros(DType::kE4M3, {130, 256})}, {"scales", real({1, 2})}};
  EXPECT_EQ(message("dequantize_block", {}, fp8),
            "op dequantize_block: operand scales: dimension 0 (Rb=ceil(R/block_rows)) is 1; 2 is needed");
  EXPECT_EQ(message("dequantize_block", {{"block_rows", 0}}, fp8),
            "op dequantize_block: dimension ceil(R/block_rows): the divisor is 0; it must be at least 1");
  EXPECT_EQ(shape(call("quantize_block", {}, {{"x", real({3, 129})}}), "scale_inv"), (Shape{3, 2}));
}

TEST(Op, size_that_no_symbol_explains_is_an_error) {
  EXPECT_EQ(message("downsample", {}, {{"x", real({6, 3})}, {"weight", real({5, 3, 2, 2})}}),
            "op downsample: operand x: dimension 0 (M*s*s) is 6; no size M gives that");
  EXPECT_EQ(shape(call("downsample", {}, {{"x", real({8, 3})}, {"weight", real({5, 3, 2, 2})}}), "y"), (Shape{2, 5}));
}

TEST(Op, integer_attributes_are_symbols) {
  EXPECT_EQ(shape(call("stream_expand", {{"n", 4}}, {{"x", real({2, 3, 5})}}), "y"), (Shape{2, 3, 4, 5}));
  EXPECT_EQ(message("kpool_compress", {{"kpool", 4}}, {{"k", real({9, 8})}, {"ape", real({2, 8})}}),
            "op kpool_compress: operand ape: dimension 0 (kpool) is 2; kpool = 4 by attribute kpool");
  EXPECT_EQ(message("stream_expand", {{"n", -1}}, {{"x", real({2, 5})}}),
            "op stream_expand: output y: dimension n would be -1; sizes are not negative");
}

TEST(Op, outputs_may_name_their_dimension) {
  const OpCall made = call("router", {{"topk", 2}}, {{"x", real({3, 4})}, {"weight", real({8, 4})}});
  EXPECT_EQ(made.dims.at("k"), 2);
  EXPECT_EQ(shape(made, "experts"), (Shape{3, 2}));
  const Inputs attention = {{"q", real({3, 2, 8})}, {"c", real({5, 8})}, {"ids", ids({3, 4})}};
  EXPECT_EQ(shape(call("sparse_attention", {{"scale", 1}, {"value_dim", 6}}, attention), "o"), (Shape{3, 2, 6}));
  EXPECT_EQ(shape(call("sparse_attention", {{"scale", 1}}, attention), "o"), std::nullopt);
}

TEST(Op, any_leading_dimensions_are_the_same_everywhere) {
  EXPECT_EQ(shape(call("rms_norm", {{"eps", 1e-5}}, {{"x", real({4})}}), "y"), (Shape{4}));
  EXPECT_EQ(shape(call("linear", {}, {{"x", real({2, 3, 4})}, {"weight", real({5, 4})}}), "y"), (Shape{2, 3, 5}));
  EXPECT_EQ(message("residual_add", {}, {{"a", real({2, 3, 4})}, {"b", real({3, 2, 4})}}),
            "op residual_add: operand b: leading dimensions [3, 2]; operand a has [2, 3]");
  EXPECT_EQ(message("residual_add", {}, {{"a", real({})}, {"b", real({4})}}),
            "op residual_add: operand a: shape []; [... C] is needed");
}

TEST(Op, disagreeing_symbols_name_both_operands) {
  EXPECT_EQ(message("linear", {}, {{"x", real({2, 4})}, {"weight", real({3, 5})}}, "layers.3.attn.q_proj"),
            "op linear at layers.3.attn.q_proj: operand weight: dimension 1 (K) is 5; K = 4 by operand x");
}

TEST(Op, wrong_attributes_are_errors) {
  const Inputs x = {{"x", real({2, 4})}};
  EXPECT_EQ(message("rms_norm", {}, x), "op rms_norm: attribute eps: missing; a finite number is needed");
  EXPECT_EQ(message("rms_norm", {{"eps", "1e-5"}}, x),
            "op rms_norm: attribute eps: \"1e-5\"; a finite number is needed");
  EXPECT_EQ(message("rms_norm", {{"eps", nullptr}}, x), "op rms_norm: attribute eps: null; a finite number is needed");
  EXPECT_EQ(message("rms_norm", {{"eps", std::numeric_limits<double>::infinity()}}, x),
            "op rms_norm: attribute eps: null; a finite number is needed");
  EXPECT_EQ(message("rms_norm", {{"epsilon", 1e-5}}, x), "op rms_norm: attribute epsilon: unknown; allowed: eps");
  EXPECT_EQ(message("rms_norm", json::array({1}), x), "op rms_norm: attributes: a JSON array; an object is needed");
  EXPECT_EQ(message("hadamard_fp8", {{"quantize", 1}}, x),
            "op hadamard_fp8: attribute quantize: 1; true or false is needed");
  EXPECT_EQ(message("stream_contract", {{"mode", 3}}, {}), "op stream_contract: attribute mode: 3; a string is needed");
  EXPECT_EQ(message("cp_headwise_order", {{"tokens", 8}, {"sections", {4, 0.5}}, {"cp_size", 2}, {"rank", 0}}, {}),
            "op cp_headwise_order: attribute sections: [4,0.5]; a list of integers is needed");
  EXPECT_EQ(message("aux_loss", {{"topk", 2.0}}, {}), "op aux_loss: attribute topk: 2.0; an integer is needed");
}

TEST(Op, wrong_operands_are_errors) {
  EXPECT_EQ(message("linear", {}, {{"x", real({2, 4})}}),
            "op linear: operand weight: missing; a tensor [N K] is needed");
  EXPECT_EQ(message("gelu", {}, {{"x", real({2})}, {"limit", real({1})}}),
            "op gelu: operand limit: unknown; allowed: x");
  EXPECT_EQ(message("gelu", {}, {{"x", ids({2})}}), "op gelu: operand x: dtype I64; a number format is needed");
  EXPECT_EQ(message("embed", {}, {{"ids", real({2})}, {"table", real({4, 3})}}),
            "op embed: operand ids: dtype BF16; an integer type is needed");
  EXPECT_EQ(message("embed", {}, {{"ids", ids({2, 1})}, {"table", real({4, 3})}}),
            "op embed: operand ids: shape [2, 1]; [T] is needed");
}

TEST(Op, empty_dimensions_are_allowed) {
  const Inputs inputs = {{"x", real({0, 4})}, {"offsets", ids({4})}, {"weight", real({3, 5, 4})}};
  EXPECT_EQ(shape(call("grouped_linear", {}, inputs), "y"), (Shape{0, 5}));
}

TEST(Op, ops_without_operands_are_made_from_attributes) {
  const OpCall made = call("cp_dense_order", {{"tokens", 24}, {"cp_size", 3}, {"rank", 1}}, {});
  EXPECT_EQ(shape(made, "zigzag"), std::nullopt);
  EXPECT_EQ(made.dims.at("tokens"), 24);
}

TEST(Dims, product_that_overflows_is_an_error) {
  const std::map<std::string, std::int64_t> dims = {{"n", std::int64_t{1} << 32}};
  EXPECT_THROW(DimensionWord("n*n").value(dims), InputError);
  EXPECT_EQ(DimensionWord("n-1+2*n").value(dims), (std::int64_t{3} << 32) - 1);
}

}  // namespace
}  // namespace assay
