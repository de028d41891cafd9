// Sampled calls (harness/sample.h) of every op that has a slice rule: their outputs are the chosen elements of the
// whole call's, to the last bit.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <set>

#include "cases/error.h"
#include "cases/ops/dims.h"
#include "harness/sample.h"
#include "reference/evaluate.h"

namespace assay::harness {
namespace {

using nlohmann::json;
using reference::Array;
using reference::Index;
using reference::Results;

std::shared_ptr<OperandSource> normal(DType dtype, const Shape& shape, std::uint64_t seed, double scale = 1.0,
                                      double offset = 0.0) {
  return std::make_shared<RandomSource>(dtype, shape, seed, Distribution::kNormal, scale, offset);
}

std::shared_ptr<OperandSource> indices(const Shape& shape, const std::vector<std::int64_t>& values) {
  return std::make_shared<HeldSource>(Tensor::from_integers(DType::kI32, shape, values));
}

/// Values of every output element as bits; integers as they are.
std::vector<std::uint64_t> bits_of(const reference::Value<double>& value) {
  std::vector<std::uint64_t> bits;
  if (const auto* reals = std::get_if<Array<double>>(&value)) {
    for (const double x : reals->data) bits.push_back(std::bit_cast<std::uint64_t>(x));
  } else {
    for (const std::int64_t x : std::get<Index>(value).data) bits.push_back(static_cast<std::uint64_t>(x));
  }
  return bits;
}

Shape shape_of(const reference::Value<double>& value) {
  return std::visit([](const auto& array) { return array.shape; }, value);
}

/// A nonempty choice of [0, size), a proper one where there is a choice: each place with one half.
std::vector<std::int64_t> some_of(std::int64_t size, std::uint64_t seed) {
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < size; ++i)
    if (random_bits(seed, static_cast<std::uint64_t>(i)) >> 63 != 0) chosen.push_back(i);
  if (chosen.empty()) chosen.push_back(static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(size)));
  if (static_cast<std::int64_t>(chosen.size()) == size && size > 1) chosen.erase(chosen.begin());
  return chosen;
}

/// Number of indices to choose from of a symbol of `whole`.
std::int64_t choices(const OpCall& whole, const Slice& slice) {
  std::int64_t size = 1;
  if (slice.symbol == "...") {
    for (const OperandSpec& input : whole.spec->inputs) {
      const auto words = dimension_words(input.dims);
      if (words.front() != "..." || whole.inputs.count(input.name) == 0) continue;
      const Shape& shape = whole.inputs.at(input.name).shape();
      return element_count(Shape(shape.begin(), shape.end() - std::ptrdiff_t(words.size() - 1)));
    }
  }
  size = whole.dims.at(slice.symbol);
  const std::size_t bar = slice.block.find('|');
  std::string block_symbol = slice.block.substr(0, bar);
  if (bar != std::string::npos && whole.dims.count(block_symbol) == 0) block_symbol = slice.block.substr(bar + 1);
  const std::int64_t block = slice.block.empty() ? 1 : whole.dims.at(block_symbol);
  return (size + block - 1) / block;
}

/// Compares every output of `whole` that has a rule with `kDraws` sampled calls of its own; returns "op output" of
/// them.
std::set<std::string> check_all_outputs(const OpCall& whole, const std::string& where) {
  constexpr std::uint64_t kDraws = 6;
  std::set<std::string> checked;
  const Sources sources = held_sources(whole.inputs);
  const Results<double> all = reference::evaluate<double>(whole);
  for (const auto& [output, value] : all) {
    const SliceRule* rule = slice_rule(whole, output);
    if (rule == nullptr) continue;
    const std::vector<std::uint64_t> bits = bits_of(value);
    for (std::uint64_t draw = 1; draw <= kDraws; ++draw) {
      SamplePlan plan{whole.spec->name, output, draw, rule->slices.empty(), {}, {}, 1.0};
      for (const Slice& slice : rule->slices)
        plan.indices[slice.symbol] = some_of(choices(whole, slice), draw * 100 + plan.indices.size());
      const SampledCall sampled = make_sampled_call(whole, sources, plan);
      const std::vector<std::int64_t> places = sampled_elements(sampled, shape_of(value));
      const std::vector<std::uint64_t> part = bits_of(reference::evaluate<double>(sampled.call).at(output));
      EXPECT_EQ(part.size(), places.size()) << where << " " << output;
      if (part.size() != places.size()) break;
      for (std::size_t i = 0; i < part.size(); ++i)
        EXPECT_EQ(part[i], bits[static_cast<std::size_t>(places[i])])
            << where << " " << output << " element " << places[i];
      const Coverage coverage = coverage_of(sampled, shape_of(value));
      EXPECT_EQ(coverage.chosen, static_cast<std::int64_t>(places.size()));
      EXPECT_EQ(coverage.all, static_cast<std::int64_t>(bits.size()));
      EXPECT_EQ(coverage.seed, draw);
    }
    checked.insert(whole.spec->name + " " + output);
  }
  return checked;
}

/// The form of cases/proofs.json (harness/prove.h), with "dtype" for a real operand that is not F64.
OpCall call_of(const OpSpec& spec, const json& given, std::uint64_t seed) {
  std::map<std::string, Tensor> inputs;
  for (const OperandSpec& operand : spec.inputs) {
    if (!given.at("inputs").contains(operand.name)) continue;
    const json& binding = given.at("inputs").at(operand.name);
    if (binding.contains("values")) {
      Shape shape{static_cast<std::int64_t>(binding.at("values").size())};
      json values = binding.at("values");
      if (values.at(0).is_array()) {
        shape.push_back(static_cast<std::int64_t>(values.at(0).size()));
        json flat = json::array();
        for (const json& row : values) flat.insert(flat.end(), row.begin(), row.end());
        values = flat;
      }
      inputs[operand.name] = indices(shape, values.get<std::vector<std::int64_t>>())->whole();
    } else {
      const DType dtype = dtype_named(binding.value("dtype", std::string("F64"))).value();
      inputs[operand.name] = normal(dtype, binding.at("shape").get<Shape>(), ++seed, binding.value("scale", 1.0),
                                    binding.value("offset", 0.0))
                                 ->whole();
    }
  }
  return make_call(spec, given.value("attributes", json::object()), inputs);
}

/// The twin of a call, with cotangents for the finite real outputs it takes, except `left_out`.
OpCall backward_of(const OpCall& forward, const OpSpec& twin, std::uint64_t seed, const std::string& left_out) {
  std::map<std::string, Tensor> inputs = forward.inputs;
  for (const auto& [name, value] : reference::evaluate<double>(forward)) {
    const bool taken = std::any_of(twin.inputs.begin(), twin.inputs.end(),
                                   [&, d = "d_" + name](const OperandSpec& operand) { return operand.name == d; });
    if (taken && "d_" + name != left_out) inputs["d_" + name] = normal(DType::kF64, shape_of(value), ++seed)->whole();
  }
  return make_call(twin, forward.attributes, inputs);
}

/// Small inputs of ops, besides those of the proofs, with sizes that leave a choice.
const char* const kMoreInputs = R"({
  "linear": [{"inputs": {"x": {"shape": [70, 9]}, "weight": {"shape": [67, 9]}, "bias": {"shape": [67]}}}],
  "grouped_linear": [{"inputs": {"x": {"shape": [12, 5]}, "offsets": {"values": [0, 4, 4, 5, 9, 12]},
                                 "weight": {"shape": [5, 4, 5]}}}],
  "dequantize_block": [{"attributes": {"block_rows": 2, "block_columns": 3},
    "inputs": {"codes": {"shape": [7, 8], "dtype": "F8_E4M3"}, "scales": {"shape": [4, 3], "dtype": "F32"}}}],
  "quantize_block": [
    {"attributes": {"block_rows": 1, "block_columns": 4}, "inputs": {"x": {"shape": [5, 14], "dtype": "BF16"}}},
    {"attributes": {"block_rows": 3, "block_columns": 4, "columnwise": true}, "inputs": {"x": {"shape": [8, 9], "dtype": "F32"}}}],
  "fp8_scale": [{"inputs": {"amax": {"shape": [7], "dtype": "F32", "offset": 7}}}],
  "fp8_row_scale": [{"inputs": {"amax": {"shape": [3, 4], "dtype": "F32", "offset": 7}}}],
  "linear_fp8": [{"attributes": {"block": 4},
    "inputs": {"x_codes": {"shape": [5, 10], "dtype": "F8_E4M3"}, "x_scales": {"shape": [5, 3], "dtype": "F32"},
               "w_codes": {"shape": [11, 10], "dtype": "F8_E4M3"}, "w_scales": {"shape": [3, 3], "dtype": "F32"}}},
    {"attributes": {"block": 4, "w_block_rows": 1},
    "inputs": {"x_codes": {"shape": [5, 10], "dtype": "F8_E4M3"}, "x_scales": {"shape": [5, 3], "dtype": "F32"},
               "w_codes": {"shape": [6, 10], "dtype": "F8_E4M3"}, "w_scales": {"shape": [6, 3], "dtype": "F32"}}}],
  "hadamard_fp8": [{"inputs": {"x": {"shape": [3, 2, 8]}}}, {"attributes": {"quantize": false}, "inputs": {"x": {"shape": [5, 4]}}}],
  "select_tokens": [{"attributes": {"topk": 4, "kpool": 2},
    "inputs": {"scores": {"shape": [6, 3]}, "first_token": {"values": [0, 2, 4]},
               "visible_start": {"values": [0, 0, 0, 0, 0, 2]}, "visible_end": {"values": [1, 2, 3, 4, 5, 6]}}}],
  "delta_rule": [{"inputs": {"q": {"shape": [9, 2, 3], "scale": 0.5}, "k": {"shape": [9, 2, 3], "scale": 0.4},
    "v": {"shape": [9, 6, 4]}, "g": {"shape": [9, 6, 3], "scale": 0.3, "offset": -1.5},
    "beta": {"shape": [9, 6], "scale": 0.1, "offset": 0.5}}}],
  "delta_rule_chunked": [{"attributes": {"chunk": 4}, "inputs": {"q": {"shape": [9, 2, 3], "scale": 0.5},
    "k": {"shape": [9, 2, 3], "scale": 0.4}, "v": {"shape": [9, 6, 4]},
    "g": {"shape": [9, 6, 3], "scale": 0.3, "offset": -1.5}, "beta": {"shape": [9, 6], "scale": 0.1, "offset": 0.5}}}],
  "kda_attention": [{"inputs": {"q": {"shape": [5, 3, 4]}, "k": {"shape": [5, 3, 4]}, "v": {"shape": [5, 3, 2]},
    "gate": {"shape": [5, 3, 4]}, "A_log": {"shape": [3]}, "beta_logits": {"shape": [5, 3]},
    "initial_state": {"shape": [1, 3, 4, 2]}}}],
  "cross_entropy": [{"inputs": {"logits": {"shape": [9, 5]}, "labels": {"values": [-100, -100, -100, -100, 3, -100, -100, 0, -100]}}}]
})";

TEST(Sample, every_rule_gives_the_bits_of_the_whole_call) {
  std::ifstream file(ASSAY_SOURCE_DIR "/cases/proofs.json");
  std::set<std::string> checked;
  for (const json& ops : {json::parse(file).at("ops"), json::parse(kMoreInputs)}) {
    for (const auto& [name, cases] : ops.items()) {
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const std::string where = name + " case " + std::to_string(i + 1);
        const OpCall forward = call_of(op_named(name), cases.at(i), 1000 * (i + 1));
        checked.merge(check_all_outputs(forward, where));
        for (const OpSpec& twin : op_specs()) {
          if (twin.name != name + ".backward") continue;
          const char* const left_out = name == "cross_entropy" ? "d_mean" : name == "hadamard_fp8" ? "d_y" : "";
          checked.merge(check_all_outputs(backward_of(forward, twin, 77, left_out), where + " backward"));
        }
      }
    }
  }
  for (const SliceRule& rule : slice_rules())
    for (const std::string& output : dimension_words(rule.outputs))
      EXPECT_EQ(checked.count(rule.op + " " + output), 1U) << rule.op << " " << output << " was not compared";
}

}  // namespace
}  // namespace assay::harness
