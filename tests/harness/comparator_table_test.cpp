// Every comparator against its table of tiny cases: comparators.json.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "cases/dtype.h"
#include "harness/ensemble.h"
#include "harness/judge.h"

namespace assay::harness {
namespace {

using nlohmann::json;
using reference::Array;
using reference::Ball;
using reference::Decision;
using reference::Index;

const json& tables() {
  static const json root = json::parse(std::ifstream(ASSAY_SOURCE_DIR "/tests/harness/comparators.json"));
  return root;
}

double number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  EXPECT_EQ(*end, '\0') << text;
  return value;
}

double number(const json& value) { return value.is_string() ? number(value.get<std::string>()) : value.get<double>(); }

/// A number or an exact sum of two.
Ball ball(const json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const std::size_t plus = text.find(" + ");
  if (plus == std::string::npos) return Ball(number(value));
  return Ball(number(text.substr(0, plus))) + Ball(number(text.substr(plus + 3)));
}

/// One number for all of `size` elements, or one each.
std::vector<double> numbers(const json& value, std::size_t size) {
  if (!value.is_array()) return std::vector<double>(size, number(value));
  std::vector<double> result;
  for (const json& v : value) result.push_back(number(v));
  return result;
}

Tensor tensor(std::string_view dtype, const json& values) {
  const DType type = dtype_named(dtype).value();
  const Shape shape{static_cast<std::int64_t>(values.size())};
  if (is_real(type)) return Tensor::from_reals(type, shape, numbers(values, values.size()));
  return Tensor::from_integers(type, shape, values.get<std::vector<std::int64_t>>());
}

Tensor observed(const json& row) { return tensor(row.at("dtype").get<std::string>(), row.at("observed")); }

Truth truth(const json& row) {
  Truth result;
  for (const json& value : row.at("truth")) {
    result.values.push_back(ball(value));
    result.negative_zeros.push_back(value == "-0");
    if (!row.contains("radius")) continue;
    arb_t zero_centred;
    arb_init(zero_centred);
    mag_set_d(arb_radref(zero_centred), number(row.at("radius")));
    arb_add(result.values.back().data(), result.values.back().data(), zero_centred, ARF_PREC_EXACT);
    arb_clear(zero_centred);
  }
  return result;
}

SpecialValues declared(const json& row) {
  SpecialValues special;
  for (const json& word : row.value("declare", json::array())) {
    if (word == "nan_expected") special.nan_expected = true;
    if (word == "signed_zeros") special.signed_zeros = true;
    if (word == "flush_to_zero") special.flush_to_zero = true;
    if (word == "saturate") special.overflow = Overflow::kSaturate;
  }
  return special;
}

/// What every row says: the word, the phrase (without one, no FAIL or MISTRUSTED), and numbers where it names them.
void expect_row(const json& row, const Check& check) {
  EXPECT_EQ(word(check.verdict), row.at("verdict").get<std::string>()) << check.reason;
  if (row.contains("phrase")) {
    EXPECT_NE(check.reason.find(row.at("phrase").get<std::string>()), std::string::npos) << check.reason;
  } else {
    EXPECT_EQ(check.verdict, Verdict::kPass) << "the row needs a phrase";
    EXPECT_EQ(check.reason, "");
  }
  if (row.contains("fixed")) {
    EXPECT_EQ(check.fixed, row.at("fixed").get<std::int64_t>());
  }
  if (row.contains("share")) {
    EXPECT_EQ(check.share, number(row.at("share")));
  }
  if (check.over_limit > 0) {
    EXPECT_EQ(check.verdict, Verdict::kFail);
  }
}

template <class Judge>
void run(const char* table, const Judge& judge) {
  reference::Context wide;
  wide.bits = 256;
  const reference::ContextScope scope(wide);
  std::set<std::string> names, words;
  for (const json& row : tables().at(table)) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    EXPECT_TRUE(names.insert(row.at("name").get<std::string>()).second) << "a name twice";
    words.insert(row.at("verdict").get<std::string>());
    expect_row(row, judge(row));
  }
  EXPECT_EQ(words, (std::set<std::string>{"FAIL", "MISTRUSTED", "PASS"})) << "a table shows every word";
}

TEST(ComparatorTable, values) {
  run("values", [](const json& row) {
    const Check check =
        judge_values(observed(row), truth(row), numbers(row.at("e"), row.at("truth").size()), declared(row));
    if (row.at("observed").size() == row.at("truth").size()) {
      EXPECT_EQ(check.share <= 1.0, check.over_limit == 0);
    }
    return check;
  });
}

Decision<Ball> decision(const json& row) {
  Decision<Ball> result;
  const auto rows = static_cast<std::int64_t>(row.at("observed").size());
  const auto chosen = row.at("chosen").get<std::vector<std::int64_t>>();
  result.chosen = Index(Shape{rows, std::ssize(chosen)});
  result.scores = Array<Ball>(Shape{rows, static_cast<std::int64_t>(row.at("scores").size())});
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < std::ssize(chosen); ++j) result.chosen.at(r, j) = chosen[static_cast<std::size_t>(j)];
    for (std::int64_t j = 0; j < result.scores.dim(1); ++j)
      result.scores.at(r, j) = ball(row.at("scores")[static_cast<std::size_t>(j)]);
    result.margin.push_back(number(row.at("margin")));
    result.tied.push_back(row.value("tied", std::vector<std::int64_t>{}));
  }
  return result;
}

TEST(ComparatorTable, choices) {
  run("choices", [](const json& row) {
    const Decision<Ball> reference = decision(row);
    std::vector<std::int64_t> ids;
    for (const json& line : row.at("observed"))
      for (const json& id : line) ids.push_back(id.get<std::int64_t>());
    const std::int64_t rows = reference.chosen.dim(0);
    const Shape shape{rows, rows == 0 ? 0 : std::ssize(ids) / rows};
    std::vector<double> limits;
    if (row.contains("limits")) limits = numbers(row.at("limits"), reference.scores.data.size());
    const Check check = judge_choice<Ball>(Tensor::from_integers(DType::kI64, shape, ids), reference, limits, nullptr);
    EXPECT_EQ(
        (std::vector<std::int64_t>{check.rows_equal, check.rows_tied, check.rows_by_margin, check.rows_unexplained}),
        row.at("counts").get<std::vector<std::int64_t>>());
    return check;
  });
}

TEST(ComparatorTable, integers) {
  run("integers", [](const json& row) {
    const auto expected = row.at("expected").get<std::vector<std::int64_t>>();
    return judge_exact(observed(row), Index({std::ssize(expected)}, expected));
  });
}

TEST(ComparatorTable, codes) {
  run("codes", [](const json& row) {
    const std::string dtype = row.at("dtype").get<std::string>();
    return judge_bits(observed(row), tensor(row.value("expected_dtype", dtype), row.at("expected")), declared(row));
  });
}

TEST(ComparatorTable, norms) {
  run("norms", [](const json& row) {
    Array<double> values({static_cast<std::int64_t>(row.at("truth").size())},
                         numbers(row.at("truth"), row.at("truth").size()));
    return judge_norm(observed(row), kept(values), numbers(row.at("deviations"), 0));
  });
}

}  // namespace
}  // namespace assay::harness
