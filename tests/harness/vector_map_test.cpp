// The language of cases/vectors.json (harness/vector_map.h), one small map per fact.
#include "harness/vector_map.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "cases/error.h"

#ifndef ASSAY_SOURCE_DIR
#define ASSAY_SOURCE_DIR "."
#endif

namespace assay::harness {
namespace {

using nlohmann::json;

Tensor counting(const Shape& shape, DType dtype = DType::kF32) {
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  std::iota(values.begin(), values.end(), 0.0);
  return Tensor::from_reals(dtype, shape, values);
}

class VectorMapTest : public testing::Test {
 protected:
  VectorMapTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) / "assay_vector_map" / test->name();
    std::filesystem::create_directories(folder_);
  }
  ~VectorMapTest() override { std::filesystem::remove_all(folder_); }

  VectorMap map(const std::string& text) const {
    const std::filesystem::path file = folder_ / "map.json";
    std::ofstream(file, std::ios::binary) << text;
    return VectorMap::read(file);
  }

  /// The calls that a group with the one rule makes of the case.
  std::vector<VectorCall> calls() {
    const json group = {{"calls", {rule}}, {"ignored", ignored}};
    unclaimed.clear();
    return map(json({{"assay_vectors", 1}, {"groups", {{"g", group}}}}).dump())
        .calls({"g.c", "g", flags, tensors}, unclaimed);
  }
  VectorCall call() {
    std::vector<VectorCall> made = calls();
    EXPECT_EQ(made.size(), 1u);
    return made.empty() ? VectorCall() : std::move(made.front());
  }
  /// The input that `binding` gives.
  Tensor bound(const json& binding) {
    rule["inputs"]["x"] = binding;
    return call().call.inputs.at("x");
  }
  /// The value of an expression.
  json value(const json& expression) {
    rule = {{"op", "l2norm"}, {"attributes", {{"eps", expression}}}, {"inputs", {{"x", "in.x"}}}, {"outputs", {}}};
    return call().call.attributes.at("eps");
  }
  void expect_complaint(const std::vector<std::string>& parts) {
    try {
      calls();
      ADD_FAILURE() << "no complaint about " << rule.dump();
    } catch (const InputError& error) {
      const std::string message = error.what();
      for (const char* part : {"map.json", "group g", "case g.c"})
        EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
      for (const std::string& part : parts)
        EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
    }
  }

  json rule = {
      {"op", "rms_norm"}, {"attributes", {{"eps", 0.5}}}, {"inputs", {{"x", "in.x"}}}, {"outputs", {{"y", "out.y"}}}};
  json ignored = json::object();
  json flags = json::object();
  std::map<std::string, Tensor> tensors = {{"in.x", counting({2, 3})}, {"out.y", counting({2, 3})}};
  std::vector<std::string> unclaimed;

 private:
  std::filesystem::path folder_;
};

TEST_F(VectorMapTest, a_rule_makes_a_call_of_a_case) {
  const VectorCall made = call();
  EXPECT_EQ(made.call.spec->name, "rms_norm");
  EXPECT_EQ(made.call.path, "g.c");
  EXPECT_EQ(made.call.attributes.at("eps"), 0.5);
  EXPECT_EQ(made.call.inputs.at("x").shape(), (Shape{2, 3}));
  ASSERT_EQ(made.outputs.size(), 1u);
  EXPECT_EQ(made.outputs[0].output, "y");
  EXPECT_EQ(made.outputs[0].recorded, "g.c.out.y");
  EXPECT_FALSE(made.outputs[0].is_choice);
  EXPECT_EQ(made.report, "");
  EXPECT_TRUE(unclaimed.empty());
}

TEST_F(VectorMapTest, flags_and_defaults) {
  flags = {{"epsilon", 0.25}, {"nothing", nullptr}};
  EXPECT_EQ(value("$epsilon"), 0.25);
  EXPECT_EQ(value("$epsilon|0.75"), 0.25);
  EXPECT_EQ(value("$absent|0.75"), 0.75);
  EXPECT_EQ(value("$nothing|0.75"), 0.75);
  EXPECT_EQ(value(0.125), 0.125);
}

TEST_F(VectorMapTest, dimensions_and_quotients) {
  tensors["in.wide"] = counting({5, 12});
  flags = {{"n", 4}};
  EXPECT_EQ(value("@in.wide.0"), 5);
  EXPECT_EQ(value("@in.wide.1"), 12);
  EXPECT_EQ(value("@in.wide.1/$n"), 3);
  EXPECT_EQ(value("@in.wide.1/@in.x.1"), 4);
}

TEST_F(VectorMapTest, wrong_dimensions_are_told) {
  flags = {{"n", 4}, {"zero", 0}};
  for (const auto& [expression, part] :
       std::map<std::string, std::string>{{"@in.x.2", "the tensor has no such dimension"},
                                          {"@in.x.1/$n", "a multiple of 4"},
                                          {"@in.x.1/$zero", "a multiple of 0"},
                                          {"@in.x.1/$absent", "an integer is needed"},
                                          {"@in.absent.0", "tensor in.absent: missing"},
                                          {"@rows", "unknown form"},
                                          {"@in.x.", "unknown form"},
                                          {"@in.x.y", "unknown form"}}) {
    rule["attributes"]["eps"] = expression;
    expect_complaint({part});
  }
}

TEST_F(VectorMapTest, an_empty_expression_is_a_text) {
  rule["attributes"]["eps"] = "";
  expect_complaint({"eps"});
}

TEST_F(VectorMapTest, map_chooses_by_a_word) {
  flags = {{"format", "e4m3"}, {"wide", true}};
  EXPECT_EQ(value({{"map", "$format"}, {"to", {{"e4m3", 0.5}, {"e5m2", 0.25}}}}), 0.5);
  EXPECT_EQ(value({{"map", "$wide"}, {"to", {{"true", 2.0}, {"false", 1.0}}}}), 2.0);
  rule["attributes"]["eps"] = {{"map", "$format"}, {"to", {{"e5m2", 0.25}}}};
  expect_complaint({"e4m3", "the map has no such word"});
}

TEST_F(VectorMapTest, truths) {
  flags = {{"yes", true}, {"no", false}, {"one", 1}};
  for (const auto& [expression, made] : std::map<std::string, bool>{{"$yes", true},
                                                                    {"$no", false},
                                                                    {"$absent", false},
                                                                    {"not $no", true},
                                                                    {"not $absent", true},
                                                                    {"has(in.x)", true},
                                                                    {"has(in.w)", false},
                                                                    {"not has(in.w)", true},
                                                                    {"dtype(in.x)==F32", true},
                                                                    {"dtype(in.x)==BF16", false},
                                                                    {"not dtype(in.x)==BF16", true}}) {
    rule["when"] = expression;
    EXPECT_EQ(calls().size(), made ? 1u : 0u) << expression;
  }
  rule["when"] = "$one";
  expect_complaint({"$one", "true or false is needed"});
  rule["when"] = "dtype(in.x)";
  expect_complaint({"unknown form"});
}

TEST_F(VectorMapTest, needs_and_a_false_when_leave_the_outputs_unclaimed) {
  rule["needs"] = {"in.x", "in.w"};
  EXPECT_TRUE(calls().empty());
  EXPECT_EQ(unclaimed, std::vector<std::string>{"out.y"});
  tensors["in.w"] = counting({3});
  EXPECT_EQ(calls().size(), 1u);
}

TEST_F(VectorMapTest, a_missing_tensor_is_told_unless_optional) {
  rule["inputs"]["weight"] = "in.w";
  expect_complaint({"tensor in.w: missing"});
  rule["inputs"]["weight"] = {{"tensor", "in.w"}, {"optional", true}};
  EXPECT_EQ(call().call.inputs.count("weight"), 0u);
  tensors["in.w"] = counting({3});
  EXPECT_EQ(call().call.inputs.count("weight"), 1u);
  rule["inputs"]["weight"] = {{"tensor", "in.w"}, {"when", "$use_weight"}};
  EXPECT_EQ(call().call.inputs.count("weight"), 0u);
}

TEST_F(VectorMapTest, concat_joins_flattened_tensors_of_one_dtype) {
  tensors["in.a"] = counting({2, 2});
  tensors["in.b"] = counting({1});
  EXPECT_EQ(bound({{"concat", {"in.a", "in.b"}}}).reals(), (std::vector<double>{0, 1, 2, 3, 0}));
  tensors["in.b"] = counting({1}, DType::kBF16);
  rule["inputs"]["x"] = {{"concat", {"in.a", "in.b"}}};
  expect_complaint({"concat of in.b", "BF16", "F32"});
}

TEST_F(VectorMapTest, values_and_cumulative_make_integers) {
  flags = {{"lengths", {3, 0, 2}}, {"n", 7}};
  rule = {{"op", "cp_packed_order"}, {"attributes", {{"cp_size", 1}, {"rank", 0}}}, {"outputs", json::object()}};
  rule["inputs"]["cu_seqlens"] = {{"values", {0, "$n", "$lengths"}}};
  EXPECT_EQ(call().call.inputs.at("cu_seqlens").integers(), (std::vector<std::int64_t>{0, 7, 3, 0, 2}));
  rule["inputs"]["cu_seqlens"] = {{"cumulative", "$lengths"}};
  EXPECT_EQ(call().call.inputs.at("cu_seqlens").integers(), (std::vector<std::int64_t>{0, 3, 3, 5}));
  rule["inputs"]["cu_seqlens"] = {{"cumulative", "$absent"}};
  expect_complaint({"$absent", "a list is needed"});
}

TEST_F(VectorMapTest, select_order_and_shape_apply_in_this_order) {
  tensors["in.x"] = counting({2, 3, 4});
  const Tensor selected = bound({{"tensor", "in.x"}, {"select", {1, 2}}});
  EXPECT_EQ(selected.shape(), (Shape{2, 4}));
  EXPECT_EQ(selected.reals(), (std::vector<double>{8, 9, 10, 11, 20, 21, 22, 23}));
  const Tensor turned = bound({{"shape", {-1, "@in.x.0"}}, {"order", {1, 0}}, {"select", {1, 2}}, {"tensor", "in.x"}});
  EXPECT_EQ(turned.shape(), (Shape{4, 2}));
  EXPECT_EQ(turned.reals(), (std::vector<double>{8, 20, 9, 21, 10, 22, 11, 23}));
  EXPECT_EQ(bound({{"tensor", "in.x"}, {"shape", {-1}}}).shape(), (Shape{24}));
}

TEST_F(VectorMapTest, layouts_that_do_not_fit_are_told_with_the_case) {
  for (const auto& [key, words] :
       std::map<std::string, json>{{"shape", {4, 2}}, {"order", {0, 0}}, {"order", {1}}, {"select", {0, 2}}}) {
    rule["inputs"]["x"] = {{"tensor", "in.x"}, {key, words}};
    expect_complaint({"[2, 3]"});
  }
  rule["inputs"]["x"] = {{"tensor", "in.x"}, {"select", {2, 0}}};
  expect_complaint({"permutation"});
  rule["inputs"]["x"] = {{"tensor", "in.x"}, {"select", 0}};
  expect_complaint({"harness/vector_map.h"});
}

TEST_F(VectorMapTest, as_reads_the_same_bytes_in_another_dtype) {
  tensors["in.x"] = Tensor::from_integers(DType::kU8, {2}, std::vector<std::int64_t>{0x38, 0xC0});
  const Tensor codes = bound({{"tensor", "in.x"}, {"as", "F8_E4M3"}});
  EXPECT_EQ(codes.reals(), (std::vector<double>{1.0, -2.0}));
  for (const char* word : {"F32", "E9M9"}) {
    rule["inputs"]["x"] = {{"tensor", "in.x"}, {"as", word}};
    expect_complaint({word, "a dtype as wide as the tensor's"});
  }
}

TEST_F(VectorMapTest, repeat_counts_and_lists) {
  flags = {{"names", {2, 0}}};
  tensors = {{"in.0", counting({1})}, {"in.2", counting({3})}, {"out.0", counting({1})}, {"out.2", counting({3})}};
  rule["inputs"]["x"] = "in.{i}";
  rule["outputs"]["y"] = "out.{i}";
  rule["attributes"]["eps"] = "$i";
  rule["repeat"] = {{{"variable", "i"}, {"in", "$names"}}};
  const std::vector<VectorCall> listed = calls();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].call.inputs.at("x").size(), 3);
  EXPECT_EQ(listed[0].call.attributes.at("eps"), 2);
  EXPECT_EQ(listed[1].outputs.at(0).recorded, "g.c.out.0");
  EXPECT_TRUE(unclaimed.empty());
  rule["repeat"] = {{{"variable", "i"}, {"in", "$absent"}}};
  expect_complaint({"$absent", "a list is needed"});
}

TEST_F(VectorMapTest, repeat_nests_and_multiplies_factors) {
  rule["inputs"]["x"] = {{"tensor", "in.x"}, {"select", {0, "$row"}}};
  rule["attributes"]["eps"] = "$k";
  rule["repeat"] = {{{"variable", "row"}, {"count", "@in.x.0"}}, {{"variable", "k"}, {"count", {"@in.x.1", 2}}}};
  const std::vector<VectorCall> made = calls();
  ASSERT_EQ(made.size(), 12u);
  EXPECT_EQ(made[7].call.inputs.at("x").reals(), (std::vector<double>{3, 4, 5}));
  EXPECT_EQ(made[7].call.attributes.at("eps"), 1);
}

TEST_F(VectorMapTest, outputs_may_be_bindings_and_lists) {
  tensors["out.z"] = counting({3, 2});
  rule["outputs"]["y"] = {"out.y", {{"tensor", "out.z"}, {"order", {1, 0}}}, "out.absent"};
  const VectorCall made = call();
  ASSERT_EQ(made.outputs.size(), 2u);
  EXPECT_EQ(made.outputs[1].recorded, "g.c.out.z");
  EXPECT_EQ(made.outputs[1].tensor.shape(), (Shape{2, 3}));
  EXPECT_TRUE(unclaimed.empty());
}

TEST_F(VectorMapTest, outputs_that_no_call_claims_are_listed_unless_ignored) {
  tensors["out.a"] = tensors["out.b"] = tensors["grad.x"] = tensors["in64.x"] = counting({1});
  ignored = {{"out.b", "a scratch buffer"}};
  calls();
  EXPECT_EQ(unclaimed, (std::vector<std::string>{"grad.x", "out.a"}));
}

TEST_F(VectorMapTest, recorded_parts_of_one_output_are_joined) {
  tensors["grad.a"] = counting({2});
  tensors["grad.b"] = counting({1});
  rule["outputs"]["y"] = {{{"concat", {"grad.a", "grad.b"}}, {"shape", {1, 3}}}, "out.y"};
  const VectorCall made = call();
  ASSERT_EQ(made.outputs.size(), 2u);
  EXPECT_EQ(made.outputs[0].recorded, "g.c.grad.a+grad.b");
  EXPECT_EQ(made.outputs[0].tensor.shape(), (Shape{1, 3}));
  EXPECT_EQ(made.outputs[0].tensor.reals(), (std::vector<double>{0, 1, 0}));
  EXPECT_TRUE(unclaimed.empty());
  tensors.erase("grad.b");
  EXPECT_EQ(call().outputs.size(), 1u);
  EXPECT_EQ(unclaimed, std::vector<std::string>{"grad.a"});
}

TEST_F(VectorMapTest, choice_and_report_are_handed_on) {
  rule.erase("outputs");
  rule["choice"] = {{"y", "out.y"}};
  rule["report"] = "no contract yet";
  const VectorCall made = call();
  ASSERT_FALSE(made.outputs.empty());
  EXPECT_TRUE(made.outputs[0].is_choice);
  EXPECT_EQ(made.report, "no contract yet");
  EXPECT_EQ(made.outputs.size(), 1u);
}

TEST_F(VectorMapTest, broken_rules_name_file_group_and_case) {
  rule["op"] = "rms_nrom";
  expect_complaint({"rms_nrom"});
  rule["op"] = "rms_norm";
  rule["attributes"] = {{"epsilon", 1}};
  expect_complaint({"epsilon"});
  rule["attributes"] = {{"eps", "$absent|{"}};
  expect_complaint({"harness/vector_map.h"});
  rule["attributes"] = {{"eps", 1}};
  rule.erase("inputs");
  expect_complaint({"inputs"});
}

TEST_F(VectorMapTest, a_file_that_is_no_map_is_refused) {
  for (const char* text : {"{", "[]", "{}", R"({"assay_vectors": 2, "groups": {}})", R"({"assay_vectors": 1})",
                           R"({"assay_vectors": "1", "groups": {}})"}) {
    EXPECT_THROW(map(text), InputError) << text;
  }
  EXPECT_THROW(VectorMap::read("/nonexistent/map.json"), InputError);
}

TEST_F(VectorMapTest, the_bundled_map_knows_its_groups) {
  const VectorMap bundled = VectorMap::read(ASSAY_SOURCE_DIR "/cases/vectors.json");
  for (const char* group : {"mhc_mapping", "kda_kernel", "kpool_select", "packed_seqs"})
    EXPECT_TRUE(bundled.knows(group)) << group;
  EXPECT_FALSE(bundled.knows("mhc"));
}

}  // namespace
}  // namespace assay::harness
