#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "program.h"

namespace assay::test {
namespace {

using nlohmann::json;

const char* const kRow = R"({"inputs": {"x": [1, "0x1.8p-3", 2.5]}, "attributes": {"eps": 1e-6}})";

json values(const Outcome& outcome, const std::string& output) {
  return json::parse(outcome.out).at("outputs").at(output).at("values");
}

// Expected digits: x / sqrt(mean(x^2) + eps) with eps the double nearest to 1e-6, in mpmath at 80 digits.
TEST(Eval, rms_norm_is_certified_to_17_digits) {
  const Outcome outcome = run("eval rms_norm -", kRow);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(values(outcome, "y"), json({"0.64171339168877771", "0.12032126094164582", "1.6042834792219443"}));
  const json document = json::parse(outcome.out);
  EXPECT_EQ(document.at("op"), "rms_norm");
  EXPECT_EQ(document.at("scalar"), "ball");
  EXPECT_EQ(document.at("bits"), 128);
  EXPECT_EQ(document.at("outputs").at("y").at("shape"), json({3}));
  EXPECT_EQ(document.at("ties"), json::object());
}

TEST(Eval, precision_is_doubled_until_the_digits_are_certain) {
  const Outcome outcome = run("eval rms_norm - --digits 40 --bits 53", kRow);
  EXPECT_EQ(json::parse(outcome.out).at("bits"), 212);
  EXPECT_EQ(values(outcome, "y"),
            json({"0.6417133916887777108644091593200752175784", "0.1203212609416458207870767173725141032959",
                  "1.604283479221944277161022898300188043946"}));
}

TEST(Eval, scalars_agree_to_their_precision) {
  const json ball = values(run("eval rms_norm - --digits 15", kRow), "y");
  EXPECT_EQ(values(run("eval rms_norm - --digits 15 --scalar double", kRow), "y"), ball);
  const Outcome real = run("eval rms_norm - --digits 15 --scalar real --bits 100", kRow);
  EXPECT_EQ(values(real, "y"), ball);
  EXPECT_EQ(json::parse(real.out).at("bits"), 100);
}

TEST(Eval, set_replaces_attributes_of_the_file) {
  EXPECT_EQ(values(run("eval rms_norm - --digits 3 --set eps=0x1p0", R"({"inputs": {"x": [0]}})"), "y"), json({"0"}));
  const char* const file = R"({"inputs": {"x": [1]}, "attributes": {"eps": 0}})";
  EXPECT_EQ(values(run("eval rms_norm - --digits 3", file), "y"), json({"1"}));
  EXPECT_EQ(values(run("eval rms_norm - --digits 3 --set eps=3", file), "y"), json({"0.5"}));
  EXPECT_EQ(values(run("eval rms_norm - --digits 3 --set eps=1 --set eps=0x1.8p+1", file), "y"), json({"0.5"}));
}

TEST(Eval, exact_values_are_short) {
  const Outcome outcome =
      run("eval layer_norm - --digits 60",
          R"({"inputs": {"x": [0, 0], "weight": [1, 1], "bias": [0.5, -1.25]}, "attributes": {"eps": 1}})");
  EXPECT_EQ(values(outcome, "y"), json({"0.5", "-1.25"}));
}

TEST(Eval, indices_are_integers_and_ties_are_named) {
  const Outcome outcome = run("eval select_tokens -",
                              R"({"inputs": {"scores": [[1, 3, 2, 2], [1, 2, 3, 4]], "first_token": [0, 2, 4, 6],
                                             "visible_start": [0, 0], "visible_end": [8, 8]},
                                  "attributes": {"topk": 4, "kpool": 2}})");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(values(outcome, "pools"), json({{1, 2}, {3, 2}}));
  EXPECT_EQ(values(outcome, "ids"), json({{2, 3, 4, 5, -1}, {6, 7, 4, 5, -1}}));
  EXPECT_EQ(values(outcome, "margin"), json({"0", "1"}));
  EXPECT_EQ(json::parse(outcome.out).at("ties"), json({{"margin", {0}}}));
}

TEST(Eval, dtypes_may_be_given) {
  const Outcome outcome =
      run("eval rms_norm -", R"({"inputs": {"x": [0.5]}, "attributes": {"eps": 0.75}, "dtypes": {"x": "bf16"}})");
  EXPECT_EQ(values(outcome, "y"), json({"0.5"}));
}

TEST(Eval, an_unknown_op_suggests_the_nearest) {
  const Outcome outcome = run("eval rms_nrom -", kRow);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(is_complaint(outcome.err, "rms_norm")) << outcome.err;
}

struct Bad {
  const char* file;
  const char* message;
};

class BadEvalFile : public testing::TestWithParam<Bad> {};

TEST_P(BadEvalFile, is_one_line_and_status_2) {
  const Outcome outcome = run("eval rms_norm - --set eps=0.25", GetParam().file);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(is_complaint(outcome.err, GetParam().message)) << outcome.err;
}

INSTANTIATE_TEST_SUITE_P(
    Eval, BadEvalFile,
    testing::Values(
        Bad{"", "not JSON"}, Bad{"{", "not JSON"}, Bad{"[1]", "holds a JSON array"}, Bad{"{}", "field inputs: missing"},
        Bad{R"({"inputs": [1]})", "field inputs: a JSON array; an object is needed"},
        Bad{R"({"inputs": {"x": [1]}, "input": {}})", "field input: unknown; allowed: inputs, attributes, dtypes"},
        Bad{R"({"inputs": {"x": [[1, 2], [3]]}})", "operand x at [1]: an array of 1; an array of 2 is needed"},
        Bad{R"({"inputs": {"x": [[1], 2]}})", "operand x at [1]: 2; an array of 1 is needed"},
        Bad{R"({"inputs": {"x": [1, [2]]}})", "operand x at [1]: an array; a value is needed"},
        Bad{R"({"inputs": {"x": [[[1, 2], [3, 4]], [[5, 6], [7, null]]]}})", "operand x at [1][1][1]: null"},
        Bad{R"({"inputs": {"x": ["0.5"]}})", "operand x at [0]: \"0.5\""},
        Bad{R"({"inputs": {"x": ["0x1.8p-3 "]}})", "operand x at [0]"},
        Bad{R"({"inputs": {"x": ["0x1.00000000000001p0"]}})", "a number that a double holds"},
        Bad{R"({"inputs": {"x": [9007199254740993]}})", "9007199254740993; a number that a double holds"},
        Bad{R"({"inputs": {"x": [1e999]}})", "not JSON"},
        Bad{R"({"inputs": {"x": [0.1]}, "dtypes": {"x": "bf16"}})",
            "a value of bf16 is needed, the nearest is 0x1.9ap-4"},
        Bad{R"({"inputs": {"x": [1]}, "dtypes": {"x": "float"}})", "field dtypes.x: 'float'; allowed: BOOL"},
        Bad{R"({"inputs": {"x": [1]}, "dtypes": {"x": 1}})", "field dtypes.x: 1; a string is needed"},
        Bad{R"({"inputs": {"x": [1]}, "dtypes": {"w": "f32"}})", "field dtypes.w: no such input"},
        Bad{R"({"inputs": {"x": [1]}, "dtypes": {"x": "I64"}})", "operand x: dtype I64"},
        Bad{R"({"inputs": {"x": [1], "x": [2]}})", "field inputs.x: present twice"},
        Bad{R"({"inputs": {"y": [1]}})", "operand y: unknown; allowed: x, weight"},
        Bad{R"({"inputs": {}})", "operand x: missing"}, Bad{R"({"inputs": {"x": 1}})", "operand x: shape []"},
        Bad{R"({"inputs": {"x": [1, 2], "weight": [1]}})", "operand weight"},
        Bad{R"({"inputs": {"x": [1]}, "attributes": {"epsilon": 1}})", "attribute epsilon: unknown; allowed: eps"},
        Bad{"{\"inputs\": {\"x\": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}}", "more than 16 dimensions"}));

TEST(Eval, index_operands_take_integers_only) {
  const std::string file = R"({"inputs": {"ids": [IDS], "table": [[1, 2], [3, 4]]}})";
  for (const char* ids : {"1.5", "\"0x1p0\"", "9223372036854775808", "null"}) {
    std::string text = file;
    text.replace(text.find("IDS"), 3, ids);
    const Outcome outcome = run("eval embed -", text);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_TRUE(is_complaint(outcome.err, "operand ids at [0]")) << outcome.err;
  }
  const Outcome narrow = run("eval embed -", R"({"inputs": {"ids": [300], "table": [[1]]}, "dtypes": {"ids": "U8"}})");
  EXPECT_TRUE(is_complaint(narrow.err, "300; an integer of U8 is needed")) << narrow.err;
}

TEST(Eval, bad_command_lines_are_one_line_and_status_2) {
  for (const char* words : {"eval", "eval rms_norm", "eval rms_norm /nonexistent.json", "eval rms_norm /tmp",
                            "eval rms_norm - --digits 0", "eval rms_norm - --digits x", "eval rms_norm - --bits 52",
                            "eval rms_norm - --scalar bound", "eval rms_norm - --set eps", "eval rms_norm - --set =1",
                            "eval rms_norm - --set eps=soft", "eval rms_norm - extra", "eval rms_norm - --set"}) {
    const Outcome outcome = run(words, kRow);
    EXPECT_EQ(outcome.status, 2) << words;
    EXPECT_EQ(outcome.out, "") << words;
    EXPECT_TRUE(is_complaint(outcome.err, "")) << words << ": " << outcome.err;
  }
}

}  // namespace
}  // namespace assay::test
