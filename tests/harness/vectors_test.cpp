// Judging of small vector files against small maps (harness/vectors.h).
#include "harness/vectors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "cases/error.h"
#include "harness/vector_map.h"

namespace assay::harness {
namespace {

using nlohmann::json;

Tensor reals(const Shape& shape, const std::vector<double>& values, DType dtype = DType::kF32) {
  return Tensor::from_reals(dtype, shape, values);
}

Tensor integers(const Shape& shape, const std::vector<std::int64_t>& values) {
  return Tensor::from_integers(DType::kI64, shape, values);
}

/// The linear op, x [N K] times weight [M K] transposed, and a selection of pools of one token.
const char* const kMap = R"({"assay_vectors": 1, "groups": {
  "linear": {"calls": [{"op": "linear", "attributes": {}, "inputs": {"x": "in.x", "weight": "in.w"},
                        "outputs": {"y": "out.y"}}]},
  "gradient": {"calls": [{"op": "linear.backward", "inputs": {"x": "in.x", "weight": "in.w", "d_y": "in.cotangent"},
                          "outputs": {"d_x": "grad.x", "d_weight": "grad.w"}}]},
  "reported": {"calls": [{"op": "linear", "attributes": {}, "inputs": {"x": "in.x", "weight": "in.w"},
                          "outputs": {"y": "out.y"}, "report": "no contract yet"}]},
  "order": {"calls": [{"op": "cp_packed_order", "attributes": {"cp_size": 1, "rank": 0},
                       "inputs": {"cu_seqlens": "in.cu_seqlens"}, "outputs": {"zigzag": "out.zigzag"}}]},
  "select": {"calls": [{"op": "select_tokens", "attributes": {"topk": "$topk", "kpool": 1, "always_select_tail": false},
                        "inputs": {"scores": "in.scores", "first_token": "in.first", "visible_start": "in.start",
                                   "visible_end": "in.end"},
                        "choice": {"ids": "out.ids"}}]}}})";

class Vectors : public testing::Test {
 protected:
  Vectors() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) / "assay_vectors" / test->name();
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "map.json") << kMap;
  }
  ~Vectors() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file() const { return folder_ / "vectors.safetensors"; }
  void write(const std::string& described) const { write_safetensors(file(), tensors, {{"cases", described}}); }

  std::vector<Check> judge(const std::string& filter = "*") const {
    write(cases.dump());
    VerifySettings settings;
    settings.scalar = ScalarKind::kBall;
    settings.filter = filter;
    return verify_vectors(file(), folder_ / "map.json", settings);
  }
  Check only() const {
    const std::vector<Check> checks = judge();
    EXPECT_EQ(checks.size(), 1u);
    return checks.empty() ? Check() : checks.front();
  }
  void add_linear(const std::string& name) {
    cases[name] = json::object();
    tensors[name + ".in.x"] = reals({1, 2}, {3.0, 4.0});
    tensors[name + ".in.w"] = reals({2, 2}, {1.0, 0.5, -1.0, 0.25});
    tensors[name + ".out.y"] = reals({1, 2}, {5.0, -2.0});
  }
  /// One query that sees four tokens; the two best of the scores 3, 2, 2, 1 are wanted.
  void add_selection(const std::vector<std::int64_t>& chosen) {
    cases["select.a"] = {{"topk", 2}};
    tensors["select.a.in.scores"] = reals({1, 4}, {3.0, 2.0, 2.0, 1.0});
    tensors["select.a.in.first"] = integers({4}, {0, 1, 2, 3});
    tensors["select.a.in.start"] = integers({1}, {0});
    tensors["select.a.in.end"] = integers({1}, {4});
    tensors["select.a.out.ids"] = integers({1, static_cast<std::int64_t>(chosen.size())}, chosen);
  }
  void expect_complaint(const std::string& part) const {
    try {
      judge();
      ADD_FAILURE() << "no complaint";
    } catch (const InputError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(part), std::string::npos) << message;
      EXPECT_NE(message.find("vectors.safetensors"), std::string::npos) << message;
    }
  }

  json cases = json::object();
  std::map<std::string, Tensor> tensors;

 private:
  std::filesystem::path folder_;
};

TEST_F(Vectors, a_right_output_passes) {
  add_linear("linear.a");
  const Check check = only();
  EXPECT_EQ(check.verdict, Verdict::kPass) << check.reason;
  EXPECT_EQ(check.stage, "linear.a.out.y");
  EXPECT_EQ(check.scope, "vector");
  EXPECT_EQ(check.elements, 2);
  EXPECT_LE(check.certified, 1e-30);
}

TEST_F(Vectors, a_wrong_value_fails_at_its_output_only) {
  add_linear("linear.a");
  add_linear("linear.b");
  add_linear("linear.c");
  tensors["linear.b.out.y"] = reals({1, 2}, {5.0, -2.0 + 0x1p-18});
  const std::vector<Check> checks = judge();
  ASSERT_EQ(checks.size(), 3u);
  for (const Check& check : checks)
    EXPECT_EQ(check.verdict, check.stage == "linear.b.out.y" ? Verdict::kFail : Verdict::kPass) << check.stage;
  EXPECT_NE(checks[1].reason.find("element [0, 1]"), std::string::npos) << checks[1].reason;
}

TEST_F(Vectors, gradients_are_judged_like_outputs) {
  cases["gradient.a"] = json::object();
  tensors["gradient.a.in.x"] = reals({1, 2}, {3.0, 4.0});
  tensors["gradient.a.in.w"] = reals({2, 2}, {1.0, 0.5, -1.0, 0.25});
  tensors["gradient.a.in.cotangent"] = reals({1, 2}, {1.0, 2.0});
  tensors["gradient.a.grad.x"] = reals({1, 2}, {-1.0, 1.0});
  tensors["gradient.a.grad.w"] = reals({2, 2}, {3.0, 4.0, 6.0, 8.0});
  for (const Check& check : judge()) EXPECT_EQ(check.verdict, Verdict::kPass) << check.reason;
  tensors["gradient.a.grad.x"] = reals({1, 2}, {-1.0, 1.0 + 0x1p-18});
  tensors["gradient.a.grad.z"] = reals({1}, {1.0});
  const std::vector<Check> checks = judge();
  ASSERT_EQ(checks.size(), 3u);
  const std::map<std::string, Verdict> expected{{"gradient.a.grad.w", Verdict::kPass},
                                                {"gradient.a.grad.x", Verdict::kFail},
                                                {"gradient.a.grad.z", Verdict::kSkipped}};
  for (const Check& check : checks) EXPECT_EQ(check.verdict, expected.at(check.stage)) << check.stage;
}

TEST_F(Vectors, filter_chooses_cases_by_name) {
  add_linear("linear.a");
  add_linear("linear.b");
  EXPECT_EQ(judge("*.b").size(), 1u);
  EXPECT_TRUE(judge("kda*").empty());
}

TEST_F(Vectors, an_unknown_group_is_skipped) {
  add_linear("linaer.a");
  const Check check = only();
  EXPECT_EQ(check.verdict, Verdict::kSkipped);
  EXPECT_EQ(check.stage, "linaer.a");
  EXPECT_NE(check.reason.find("no group linaer"), std::string::npos);
}

TEST_F(Vectors, an_output_that_the_map_does_not_claim_is_skipped) {
  add_linear("linear.a");
  tensors["linear.a.out.z"] = reals({1}, {1.0});
  const std::vector<Check> checks = judge();
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_EQ(checks[0].verdict, Verdict::kPass);
  EXPECT_EQ(checks[1].verdict, Verdict::kSkipped);
  EXPECT_EQ(checks[1].stage, "linear.a.out.z");
}

TEST_F(Vectors, an_output_of_another_size_fails) {
  add_linear("linear.a");
  tensors["linear.a.out.y"] = reals({1, 1}, {5.0});
  const Check check = only();
  EXPECT_EQ(check.verdict, Verdict::kFail);
  EXPECT_NE(check.reason.find("recorded shape [1, 1], the op gives [1, 2]"), std::string::npos) << check.reason;
}

TEST_F(Vectors, nan_and_infinity_fail) {
  add_linear("linear.a");
  for (const double wrong : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    tensors["linear.a.out.y"] = reals({1, 2}, {5.0, wrong});
    EXPECT_EQ(only().verdict, Verdict::kFail);
  }
}

TEST_F(Vectors, zeros_that_should_be_zeros_pass) {
  add_linear("linear.a");
  tensors["linear.a.in.x"] = tensors["linear.a.out.y"] = reals({1, 2}, {0.0, 0.0});
  EXPECT_EQ(only().verdict, Verdict::kPass);
  tensors["linear.a.out.y"] = reals({1, 2}, {0.0, 1e-3});
  EXPECT_EQ(only().verdict, Verdict::kFail);
}

TEST_F(Vectors, zeros_for_values_that_f32_may_flush_pass) {
  cases["linear.a"] = json::object();
  tensors["linear.a.in.x"] = reals({1, 1}, {0x1p-100});
  tensors["linear.a.in.w"] = reals({1, 1}, {0x1p-30});
  tensors["linear.a.out.y"] = reals({1, 1}, {0.0});
  const Check check = only();
  EXPECT_EQ(check.verdict, Verdict::kPass);
  EXPECT_NE(check.reason.find("zeros are right"), std::string::npos) << check.reason;
  tensors["linear.a.out.y"] = reals({1, 1}, {0x1p-120});
  EXPECT_EQ(only().verdict, Verdict::kFail);
}

// 1e8 - 1e8 + 1e-3: in f32 nothing of the sum is certain.
TEST_F(Vectors, a_limit_as_wide_as_the_values_is_mistrusted) {
  cases["linear.a"] = json::object();
  tensors["linear.a.in.x"] = reals({1, 3}, {1e8, -1e8, 1.0});
  tensors["linear.a.in.w"] = reals({1, 3}, {1.0, 1.0, 0x1p-10});
  tensors["linear.a.out.y"] = reals({1, 1}, {0.0});
  EXPECT_EQ(only().verdict, Verdict::kMistrusted);
}

TEST_F(Vectors, coarser_recorded_dtypes_widen_the_limit) {
  add_linear("linear.a");
  tensors["linear.a.out.y"] = reals({1, 2}, {5.0 + 0x1p-6, -2.0}, DType::kBF16);
  EXPECT_EQ(only().verdict, Verdict::kPass);
  tensors["linear.a.out.y"] = reals({1, 2}, {5.0 + 0x1p-6, -2.0}, DType::kF32);
  EXPECT_EQ(only().verdict, Verdict::kFail);
}

TEST_F(Vectors, indices_are_held_to_equality) {
  cases["order.a"] = json::object();
  tensors["order.a.in.cu_seqlens"] = integers({2}, {0, 4});
  tensors["order.a.out.zigzag"] = integers({4}, {0, 1, 2, 3});
  EXPECT_EQ(only().verdict, Verdict::kPass);
  tensors["order.a.out.zigzag"] = integers({4}, {0, 1, 3, 2});
  const Check check = only();
  EXPECT_EQ(check.verdict, Verdict::kFail);
  EXPECT_EQ(check.over_limit, 2);
  EXPECT_NE(check.reason.find("element 2: 3, expected 2"), std::string::npos) << check.reason;
  for (const double wrong : {2.5, std::nan(""), 1e300}) {
    tensors["order.a.out.zigzag"] = reals({4}, {0, 1, wrong, 3}, DType::kF64);
    EXPECT_EQ(only().verdict, Verdict::kFail) << wrong;
  }
}

TEST_F(Vectors, a_choice_is_judged_as_a_set_with_its_ties) {
  add_selection({1, 0});
  EXPECT_EQ(only().verdict, Verdict::kPass);
  add_selection({0, 2});
  const Check tied = only();
  EXPECT_EQ(tied.verdict, Verdict::kPass);
  EXPECT_EQ(tied.rows_tied, 1);
  add_selection({0, 3});
  EXPECT_EQ(only().verdict, Verdict::kFail);
  add_selection({1, 2});
  EXPECT_EQ(only().verdict, Verdict::kFail);
  add_selection({0, 0});
  EXPECT_EQ(only().verdict, Verdict::kFail);
}

TEST_F(Vectors, a_choice_that_selects_everything_still_has_to_be_right) {
  add_selection({0, 1, 2, 3});
  cases["select.a"]["topk"] = 4;
  EXPECT_EQ(only().verdict, Verdict::kPass);
  add_selection({0, 1, 2, -1});
  cases["select.a"]["topk"] = 4;
  EXPECT_EQ(only().verdict, Verdict::kFail);
}

TEST_F(Vectors, ids_that_are_no_integers_are_refused) {
  add_selection({0, 1});
  tensors["select.a.out.ids"] = reals({1, 2}, {0.0, 1.0});
  expect_complaint("select.a.out.ids");
}

TEST_F(Vectors, a_reported_distance_has_no_verdict) {
  add_linear("reported.a");
  tensors["reported.a.out.y"] = reals({1, 2}, {5.0, -1.0});
  const Check check = only();
  EXPECT_EQ(check.verdict, Verdict::kSkipped);
  EXPECT_NE(check.reason.find("distance to the truth 0.186"), std::string::npos) << check.reason;  // 1 / sqrt(29)
  EXPECT_NE(check.reason.find("no contract yet"), std::string::npos);
}

TEST_F(Vectors, wrong_content_of_an_input_names_the_case) {
  cases["order.a"] = json::object();
  tensors["order.a.in.cu_seqlens"] = integers({3}, {0, 4, 2});
  tensors["order.a.out.zigzag"] = integers({4}, {0, 1, 2, 3});
  expect_complaint("case order.a: ");
}

TEST_F(Vectors, empty_tensors_are_made_of_their_flag) {
  add_linear("linear.a");
  cases["linear.a"]["empty_tensors"] = {"in.x:[0, 2]", "out.y:[0, 2]"};
  tensors.erase("linear.a.in.x");
  tensors.erase("linear.a.out.y");
  write(cases.dump());
  const std::vector<VectorCase> read = read_vector_cases(file());
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].tensors.at("in.x").shape(), (Shape{0, 2}));
  for (const json& wrong : {json("in.x"), json("in.x:[2]"), json("in.x:[0, -1]"), json("in.x:0"), json("in.x:[0"),
                            json(0), json("in.x:[0, 1.5]")}) {
    cases["linear.a"]["empty_tensors"] = {wrong};
    expect_complaint("case linear.a: flag empty_tensors");
  }
}

TEST_F(Vectors, cases_come_in_name_order) {
  add_linear("linear.b");
  add_linear("linear.a");
  write(cases.dump());
  const std::vector<VectorCase> read = read_vector_cases(file());
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].name, "linear.a");
  EXPECT_EQ(read[0].group, "linear");
  EXPECT_EQ(read[0].tensors.size(), 3u);
}

TEST_F(Vectors, broken_metadata_is_refused) {
  add_linear("linear.a");
  for (const auto& [text, part] :
       std::map<std::string, std::string>{{"{", "not JSON"},
                                          {"[]", "not an object"},
                                          {R"({"linear": {}})", "case linear: "},
                                          {R"({"linear.a": 1})", "case linear.a: "},
                                          {"{}", "belongs to no case"},
                                          {R"({"linear.b": {}})", "tensor linear.a.in.w: belongs to no case"}}) {
    write(text);
    try {
      read_vector_cases(file());
      ADD_FAILURE() << text;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  write_safetensors(file(), tensors);
  EXPECT_THROW(read_vector_cases(file()), InputError);
  tensors["x"] = tensors["linear.a.in.x"];
  expect_complaint("tensor x: belongs to no case");
}

TEST(ByGroup, passes_become_one_row_and_others_stay) {
  std::vector<Check> checks(4);
  for (Check& check : checks) {
    check.verdict = Verdict::kPass;
    check.elements = 10;
  }
  checks[0].stage = "linear.a.out.y";
  checks[1].stage = "linear.a.out.z";
  checks[2].stage = "linear.b.out.y";
  checks[1].share = 0.5;
  checks[3].stage = "linear.c.out.y";
  checks[3].verdict = Verdict::kFail;
  const std::vector<Check> rows = by_group(checks);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].stage, "linear: 3 outputs of 2 cases");
  EXPECT_EQ(rows[0].elements, 30);
  EXPECT_EQ(rows[0].share, 0.5);
  EXPECT_EQ(rows[1].stage, "linear.c.out.y");
  EXPECT_EQ(rows[1].verdict, Verdict::kFail);
}

}  // namespace
}  // namespace assay::harness
