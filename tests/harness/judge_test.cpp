#include "harness/judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>
#include <set>

#include "cases/error.h"
#include "cases/formats.h"
#include "harness/result_json.h"
#include "harness/table.h"

namespace assay::harness {
namespace {

using reference::Array;
using reference::Ball;
using reference::Decision;
using reference::Index;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLeastF64 = 0x1p-1074, kLeastF32 = 0x1p-149;

Truth exact(const std::vector<double>& values) {
  Truth truth;
  for (const double value : values) truth.values.emplace_back(value);
  return truth;
}

Check judge(DType dtype, const std::vector<double>& observed, const std::vector<double>& truth, double limit = 0.0) {
  const Tensor tensor = Tensor::from_reals(dtype, {static_cast<std::int64_t>(observed.size())}, observed);
  return judge_values(tensor, exact(truth), std::vector<double>(truth.size(), limit));
}

struct Row {
  const char* fact;
  DType dtype;
  double observed, truth, limit;
  Verdict verdict;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.fact; }

class JudgeOne : public testing::TestWithParam<Row> {};

// The second element is right: a row is never mistrusted for a truth of zeros.
TEST_P(JudgeOne, element_gets_its_verdict) {
  const Row& row = GetParam();
  const Tensor observed = Tensor::from_reals(row.dtype, {2}, std::vector<double>{row.observed, 1.0});
  const Check check = judge_values(observed, exact({row.truth, 1.0}), {row.limit, 0.0});
  EXPECT_EQ(word(check.verdict), word(row.verdict)) << check.reason;
  EXPECT_EQ(check.over_limit, row.verdict == Verdict::kPass ? 0 : 1);
  EXPECT_EQ(check.elements, 2);
}

constexpr Verdict kPass = Verdict::kPass, kFail = Verdict::kFail;

INSTANTIATE_TEST_SUITE_P(Values, JudgeOne,
                         testing::Values(Row{"equal", DType::kF64, 0.1, 0.1, 0.0, kPass},
                                         Row{"within the limit", DType::kF64, 1.0 + 0x1p-30, 1.0, 0x1p-30, kPass},
                                         Row{"beyond the limit", DType::kF64, 1.0 + 0x1p-29, 1.0, 0x1p-30, kFail},
                                         Row{"within from below", DType::kF64, 1.0 - 0x1p-30, 1.0, 0x1p-30, kPass},
                                         Row{"beyond from below", DType::kF64, 1.0 - 0x1p-29, 1.0, 0x1p-30, kFail},
                                         Row{"opposite sign", DType::kF64, -1.0, 1.0, 0x1p-3, kFail},
                                         Row{"integer equal", DType::kI64, 7.0, 7.0, 0.0, kPass},
                                         Row{"integer off by one", DType::kI64, 8.0, 7.0, 0.0, kFail}));

// Harness self-test of T51: NaN and infinity never pass unless both sides hold the same infinity.
INSTANTIATE_TEST_SUITE_P(T51_special_values, JudgeOne,
                         testing::Values(Row{"NaN observed", DType::kF32, kNaN, 0.5, 0.1, kFail},
                                         Row{"NaN expected", DType::kF32, 0.5, kNaN, 0.1, kFail},
                                         Row{"NaN on both sides", DType::kF32, kNaN, kNaN, 0.1, kFail},
                                         Row{"NaN observed, any limit", DType::kF32, kNaN, 0.5, kInf, kFail},
                                         Row{"NaN expected, any limit", DType::kF32, 0.5, kNaN, kInf, kFail},
                                         Row{"NaN on both sides, any limit", DType::kF32, kNaN, kNaN, kInf, kFail},
                                         Row{"limit NaN", DType::kF64, 0.5, 0.25, kNaN, kFail},
                                         Row{"same infinity", DType::kF32, kInf, kInf, 0.0, kPass},
                                         Row{"same negative infinity", DType::kF32, -kInf, -kInf, 0.0, kPass},
                                         Row{"inf against -inf", DType::kF32, kInf, -kInf, 0.1, kFail},
                                         Row{"-inf against inf, any limit", DType::kF32, -kInf, kInf, kInf, kFail},
                                         Row{"inf against finite", DType::kF32, kInf, 3e38, 1e38, kFail},
                                         Row{"inf against finite, any limit", DType::kF32, kInf, 1.0, kInf, kFail},
                                         Row{"finite against inf", DType::kF32, 3e38, kInf, 0.1, kFail},
                                         Row{"finite against inf, any limit", DType::kF32, 1.0, kInf, kInf, kFail}));

INSTANTIATE_TEST_SUITE_P(
    Zeros_and_subnormals, JudgeOne,
    testing::Values(Row{"+0 against -0", DType::kF32, 0.0, -0.0, 0.0, kPass},
                    Row{"-0 against +0", DType::kF64, -0.0, 0.0, 0.0, kPass},
                    Row{"least F32", DType::kF32, kLeastF32, kLeastF32, 0.0, kPass},
                    Row{"twice the least F32", DType::kF32, 2 * kLeastF32, kLeastF32, 0.0, kFail},
                    Row{"least F32 flushed", DType::kF32, 0.0, kLeastF32, 0.0, kFail},
                    Row{"least F32 flushed, allowed", DType::kF32, 0.0, kLeastF32, kLeastF32, kPass},
                    Row{"half the least F32 stored as 0", DType::kF32, 0.0, kLeastF32 / 2, 0.0, kPass},
                    Row{"least F64", DType::kF64, kLeastF64, kLeastF64, 0.0, kPass},
                    Row{"three times the least F64", DType::kF64, 3 * kLeastF64, kLeastF64, 0.0, kFail},
                    Row{"largest F64", DType::kF64, 0x1.fffffffffffffp1023, 0x1.fffffffffffffp1023, 0.0, kPass},
                    Row{"largest F64 of the other sign", DType::kF64, -0x1.fffffffffffffp1023, 0x1.fffffffffffffp1023,
                        0.0, kFail}));

struct Stored {
  DType dtype;
  int mantissa_bits;
};

class Storage : public testing::TestWithParam<Stored> {};

TEST_P(Storage, half_an_ulp_passes_and_one_ulp_fails_without_a_limit) {
  const DType dtype = GetParam().dtype;
  const double ulp = std::ldexp(1.0, -GetParam().mantissa_bits);
  for (const double sign : {1.0, -1.0}) {
    for (const double value : {1.0, 1.5}) {
      EXPECT_EQ(judge(dtype, {sign * value}, {sign * (value + ulp / 2)}).verdict, kPass) << value;
      EXPECT_EQ(judge(dtype, {sign * (value + ulp)}, {sign * value}).verdict, kFail) << value;
      EXPECT_EQ(judge(dtype, {sign * value}, {sign * (value + ulp)}).verdict, kFail) << value;
    }
    EXPECT_EQ(judge(dtype, {sign * (1.5 - ulp)}, {sign * 1.5}).verdict, kFail);
  }
  EXPECT_EQ(storage_error(dtype, 1.0), ulp / 2);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Storage,
                         testing::Values(Stored{DType::kBF16, 7}, Stored{DType::kF16, 10}, Stored{DType::kF32, 23},
                                         Stored{DType::kE4M3, 3}, Stored{DType::kE5M2, 2}),
                         [](const auto& row) { return std::string(name_of(row.param.dtype)); });

// 1 + 2^-53 is no double: the truth is a ball of that midpoint.
TEST(JudgeValues, half_an_ulp_of_f64_passes_and_one_ulp_fails) {
  EXPECT_EQ(judge(DType::kF64, {1.0}, {1.0 + 0x1p-52}).verdict, kFail);
  EXPECT_EQ(judge(DType::kF64, {1.0 + 0x1p-52}, {1.0}).verdict, kFail);
  reference::Context wide;
  wide.bits = 128;
  const reference::ContextScope scope(wide);
  Truth between;
  between.values.push_back(Ball(1.0) + Ball(0x1p-53));
  EXPECT_EQ(judge_values(Tensor::from_reals(DType::kF64, {1}, std::vector<double>{1.0}), between, {0.0}).verdict,
            kPass);
}

TEST(JudgeValues, ulps_are_steps_of_the_recorded_dtype) {
  EXPECT_EQ(ulps_between(DType::kBF16, 1.0, 1.0 + 0x1p-7), 1);
  EXPECT_EQ(ulps_between(DType::kF32, -kLeastF32, kLeastF32), 2);
  EXPECT_EQ(ulps_between(DType::kF64, 1.0, 1.0 - 0x1p-53), 1);
  EXPECT_EQ(ulps_between(DType::kF64, -kLeastF64, 2 * kLeastF64), 3);
  EXPECT_EQ(ulps_between(DType::kF64, -0.0, 0.0), 0);
  EXPECT_EQ(ulps_between(DType::kF64, -0x1.fffffffffffffp1023, 0x1.fffffffffffffp1023),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(ulps_between(DType::kF32, kInf, 1.0), std::nullopt);
  EXPECT_EQ(ulps_between(DType::kI32, 1.0, 2.0), std::nullopt);
}

TEST(JudgeValues, the_sign_of_a_zero_comes_from_the_scalars_that_have_one) {
  EXPECT_EQ(truth_of(Array<double>({2}, {1.0, -0.0})).negative_zeros, (std::vector<bool>{false, true}));
  EXPECT_EQ(truth_of(Array<reference::Real>({2}, {reference::Real(-0.0), reference::Real(1.0)})).negative_zeros,
            (std::vector<bool>{true, false}));
  EXPECT_TRUE(truth_of(Array<double>({2}, {0.0, -1.0})).negative_zeros.empty());
}

// A tensor of which most is fixed tells how much was used where something was left to use.
TEST(JudgeValues, a_right_fixed_element_is_not_the_worst) {
  const Tensor observed = Tensor::from_reals(DType::kF32, {3}, std::vector<double>{1.0, 8.0 + 0x1p-12, 2.0});
  const Check check = judge_values(observed, exact({1.0 + 0x1p-25, 8.0, 2.0}), {0.0, 0x1p-10, 0.0});
  EXPECT_EQ(check.verdict, kPass);
  EXPECT_EQ(check.fixed, 2);
  EXPECT_EQ(check.share, 0.25);
  EXPECT_EQ(check.worst->index, (std::vector<std::int64_t>{1}));
}

TEST(JudgeValues, fixed_elements_are_told_in_table_last_line_and_json) {
  Check check = judge(DType::kF32, {1.0, 2.0, 4.0}, {1.0, 2.0, 4.0});
  check.stage = "x";
  Report report;
  report.title = "case";
  report.checks = {check};
  EXPECT_NE(to_table(report, false).find("PASS     all 3 elements are fixed bit for bit"), std::string::npos)
      << to_table(report, false);
  EXPECT_EQ(report.last_line(), "PASS: 1 check of case, 3 elements (3 fixed bit for bit)");
  EXPECT_EQ(to_json(report).at("checks")[0].at("fixed"), 3);
  EXPECT_EQ(to_json(report).at("checks")[0].at("worst").at("ulps"), 0);
  check.fixed = 2;
  EXPECT_EQ(explain(check), "2 of 3 elements are fixed bit for bit");
}

TEST(JudgeValues, storage_of_integers_costs_nothing) {
  EXPECT_EQ(storage_error(DType::kI32, 1e6), 0.0);
  EXPECT_EQ(storage_error(DType::kU8, 255.0), 0.0);
}

TEST(JudgeValues, storage_of_a_tiny_value_costs_half_the_smallest_subnormal) {
  EXPECT_EQ(storage_error(DType::kF32, 0.0), 0x1p-150);
  EXPECT_EQ(storage_error(DType::kBF16, 0.0), 0x1p-134);
  EXPECT_EQ(storage_error(DType::kE4M3, 0x1p-9), 0x1p-10);
  EXPECT_EQ(storage_error(DType::kE5M2, 0.0), 0x1p-17);
}

TEST(JudgeValues, a_truth_less_certain_than_its_limit_is_mistrusted) {
  reference::Context wide;
  wide.bits = 128;
  const reference::ContextScope scope(wide);
  Truth third;
  third.values.push_back(Ball(1.0) / Ball(3.0));
  EXPECT_EQ(judge_values(Tensor::from_reals(DType::kF64, {1}, std::vector<double>{1.0 / 3.0}), third, {0.0}).verdict,
            kPass);
  Truth loose;
  loose.values.push_back(reference::abs(Ball(1.0)));
  arb_add_error_2exp_si(loose.values.back().data(), -20);
  const Tensor one = Tensor::from_reals(DType::kF64, {1}, std::vector<double>{1.0});
  EXPECT_EQ(judge_values(one, loose, {0x1p-21}).verdict, Verdict::kMistrusted);
  const Check check = judge_values(one, loose, {0x1p-19});
  EXPECT_EQ(check.verdict, kPass);
  EXPECT_NEAR(check.certified, 0x1p-20, 0x1p-30);
}

/// Whether some w with low <= w <= high rounds to the finite code, told from the midpoints to its neighbours.
bool reaches(const Format& format, std::uint32_t code, double low, double high) {
  const double value = decode(format, code), sign = std::signbit(value) ? -1.0 : 1.0, magnitude = std::abs(value);
  const bool even = code % 2 == 0;
  const std::uint32_t positive = code & ((1U << (format.exponent_bits + format.mantissa_bits)) - 1U);
  const double step_up = std::ldexp(
      std::max(std::exp2(std::ilogb(std::max(magnitude, format.min_positive))), std::ldexp(1.0, 1 - format.bias)),
      -format.mantissa_bits);
  const double top = magnitude + step_up / 2;
  const double bottom = positive == 0 ? -top : (magnitude + decode(format, positive - 1)) / 2;
  const double from = sign > 0 ? low : -high, to = sign > 0 ? high : -low;
  return even ? from <= top && bottom <= to : from < top && bottom < to;
}

// Every code of the 8-bit formats against the cells of rounding, written without rounding anything.
TEST(JudgeValues, exactly_the_codes_that_the_interval_reaches_pass) {
  for (const DType dtype : {DType::kE4M3, DType::kE5M2}) {
    const Format& format = *format_of(dtype);
    const double least = format.min_positive;
    for (const double v : {1.0, 1.0625, 1.09375, -1.0625, 1.75, 1.9, 2.0, -0.3, 40.0, 3 * least, 0.5 * least, 0.0,
                           0.2 * least, -1.5 * least}) {
      for (const double e : {0.0, 0x1p-12, 0x1p-5, 0.0625, 0.1, 0.3, 0.5 * least, 2.5 * least}) {
        reference::Context wide;
        wide.bits = 256;
        const reference::ContextScope scope(wide);
        std::set<double> legal;
        std::int64_t fixed = 0;
        for (std::uint32_t code = 0; code < 256; ++code) {
          const double value = decode(format, code);
          if (!std::isfinite(value)) continue;
          const Tensor observed = Tensor::from_reals(dtype, {1}, std::vector<double>{value});
          const Check check = judge_values(observed, exact({v}), {e});
          const bool passes = check.over_limit == 0;
          EXPECT_EQ(passes, reaches(format, code, v - e, v + e)) << format.name << " " << v << " " << e << " " << value;
          EXPECT_EQ(check.share <= 1.0, passes) << format.name << " " << v << " " << e << " " << value;
          EXPECT_TRUE(passes || check.verdict == kFail);
          if (passes) legal.insert(value == 0.0 ? 0.0 : value);
          fixed = check.fixed;
        }
        EXPECT_EQ(fixed, legal.size() == 1 ? 1 : 0) << format.name << " " << v << " " << e;
        EXPECT_FALSE(legal.empty());
      }
    }
  }
}

TEST(JudgeValues, nothing_compared_is_mistrusted) {
  const Check check = judge(DType::kF32, {}, {});
  EXPECT_EQ(check.verdict, Verdict::kMistrusted);
  EXPECT_EQ(check.reason, "nothing was compared");
}

TEST(JudgeValues, truth_of_zeros_is_mistrusted) {
  const Check check = judge(DType::kF32, {0.0, -0.0}, {0.0, 0.0}, 1e-6);
  EXPECT_EQ(check.verdict, Verdict::kMistrusted);
  EXPECT_EQ(check.reason, "the truth is zero everywhere");
}

TEST(JudgeValues, limits_as_wide_as_the_values_are_mistrusted) {
  const Check check = judge(DType::kF64, {1.0, 2.0}, {1.0, 2.0}, 2.0);
  EXPECT_EQ(check.verdict, Verdict::kMistrusted);
  EXPECT_NE(check.reason.find("zeros would have passed"), std::string::npos);
  EXPECT_EQ(judge(DType::kF64, {1.0, 2.0}, {1.0, 2.0}, kInf).verdict, Verdict::kMistrusted);
}

TEST(JudgeValues, a_failure_outweighs_mistrust) {
  EXPECT_EQ(judge(DType::kF32, {0.0, 1.0}, {0.0, 0.0}).verdict, kFail);
  EXPECT_EQ(judge(DType::kF64, {100.0, 2.0}, {1.0, 2.0}, 5.0).verdict, kFail);
}

TEST(JudgeValues, reason_names_the_worst_element_in_decimal_and_hex) {
  const Tensor observed = Tensor::from_reals(DType::kF64, {2, 3}, std::vector<double>{1.0, 2.125, 3.0, 4.0, 5.0, 6.5});
  const Check check = judge_values(observed, exact({1, 2, 3, 4, 5, 6}), std::vector<double>(6, 0x1p-10));
  EXPECT_EQ(check.verdict, kFail);
  EXPECT_EQ(check.over_limit, 2);
  ASSERT_TRUE(check.worst);
  EXPECT_EQ(check.worst->index, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(check.worst->observed, 6.5);
  EXPECT_EQ(check.worst->expected, 6.0);
  EXPECT_EQ(check.error, 0.5);
  for (const char* part : {"2 of 6 elements", "element [1, 2]", "6.5 (0x1.ap+2)", "expected 6 (0x1.8p+2)", "off by 0.5",
                           "ULP of F64", "limit 0.000977"}) {
    EXPECT_NE(check.reason.find(part), std::string::npos) << part << " in " << check.reason;
  }
}

TEST(JudgeValues, worst_is_the_largest_share_not_the_largest_error) {
  const Tensor observed = Tensor::from_reals(DType::kF64, {2}, std::vector<double>{1024.25, 1.125});
  const Check check = judge_values(observed, exact({1024.0, 1.0}), {1.0, 0.25});
  EXPECT_EQ(check.verdict, kPass);
  EXPECT_EQ(check.worst->index, (std::vector<std::int64_t>{1}));
  EXPECT_NEAR(check.share, 0.5, 1e-12);
  EXPECT_NEAR(check.relative_error, std::sqrt((0.0625 + 0.015625) / (1024.0 * 1024.0 + 1.0)), 1e-15);
}

TEST(JudgeValues, a_scalar_tensor_has_an_empty_index) {
  const Tensor loss = Tensor::from_reals(DType::kF32, {}, std::vector<double>{2.0});
  const Check check = judge_values(loss, exact({3.0}), {0.0});
  EXPECT_NE(check.reason.find("element []: 2 "), std::string::npos) << check.reason;
}

template <class T>
class JudgeChoice : public testing::Test {};
using Scalars = testing::Types<double, reference::Real, Ball, reference::Bound>;
TYPED_TEST_SUITE(JudgeChoice, Scalars);

/// Experts: the two best of four, in one row or several equal ones.
template <class T>
Decision<T> experts(const std::vector<double>& scores, std::vector<std::int64_t> chosen, double margin,
                    std::vector<std::int64_t> tied, std::int64_t rows = 1) {
  Decision<T> decision;
  const auto width = static_cast<std::int64_t>(chosen.size()), all = static_cast<std::int64_t>(scores.size());
  decision.chosen = Index(Shape{rows, width});
  decision.scores = Array<T>(Shape{rows, all});
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < width; ++j) decision.chosen.at(r, j) = chosen[static_cast<std::size_t>(j)];
    for (std::int64_t j = 0; j < all; ++j) decision.scores.at(r, j) = T(scores[static_cast<std::size_t>(j)]);
    decision.margin.push_back(margin);
    decision.tied.push_back(tied);
  }
  return decision;
}

Tensor ids(const Shape& shape, const std::vector<std::int64_t>& values) {
  return Tensor::from_integers(DType::kI64, shape, values);
}

TYPED_TEST(JudgeChoice, equal_sets_pass_in_any_order) {
  const auto decision = experts<TypeParam>({3, 2, 1, 0}, {0, 1}, 1.0, {});
  const Check check = judge_choice<TypeParam>(ids({1, 2}, {1, 0}), decision, {}, nullptr);
  EXPECT_EQ(check.verdict, kPass);
  EXPECT_TRUE(check.is_set);
  EXPECT_EQ(check.rows_equal, 1);
}

TYPED_TEST(JudgeChoice, exact_tie_is_excused_inside_the_tied_group_only) {
  const auto decision = experts<TypeParam>({3, 2, 2, 1}, {0, 1}, 0.0, {1, 2});
  const Check inside = judge_choice<TypeParam>(ids({1, 2}, {0, 2}), decision, {}, nullptr);
  EXPECT_EQ(inside.verdict, kPass);
  EXPECT_EQ(inside.rows_tied, 1);
  EXPECT_EQ(inside.reason, "row 0 ties at the threshold");
  for (const auto& wrong : std::vector<std::vector<std::int64_t>>{{0, 3}, {1, 2}, {2, 3}}) {
    const Check outside = judge_choice<TypeParam>(ids({1, 2}, wrong), decision, {}, nullptr);
    EXPECT_EQ(outside.verdict, kFail) << wrong[0] << ", " << wrong[1];
    EXPECT_EQ(outside.rows_unexplained, 1);
  }
}

TYPED_TEST(JudgeChoice, different_size_is_never_excused) {
  const auto decision = experts<TypeParam>({3, 2, 2, 1}, {0, 1}, 0.0, {1, 2});
  const std::vector<double> wide(4, 100.0);
  for (const auto& wrong : std::vector<std::vector<std::int64_t>>{{0, -1, -1}, {0, 1, 2}, {-1, -1, -1}}) {
    EXPECT_EQ(judge_choice<TypeParam>(ids({1, 3}, wrong), decision, wide, nullptr).verdict, kFail);
  }
}

TYPED_TEST(JudgeChoice, an_id_chosen_twice_is_never_excused) {
  const auto decision = experts<TypeParam>({3, 2, 2, 1}, {0, 1}, 0.0, {1, 2});
  const std::vector<double> wide(4, 100.0);
  EXPECT_EQ(judge_choice<TypeParam>(ids({1, 3}, {0, 1, 1}), decision, wide, nullptr).verdict, kFail);
  EXPECT_EQ(judge_choice<TypeParam>(ids({1, 3}, {0, 2, 2}), decision, wide, nullptr).verdict, kFail);
}

TYPED_TEST(JudgeChoice, margin_excuses_only_within_the_limits_of_both_scores) {
  const auto decision = experts<TypeParam>({3, 2, 1.75, 1}, {0, 1}, 0.25, {});
  const Tensor observed = ids({1, 2}, {0, 2});
  EXPECT_EQ(judge_choice<TypeParam>(observed, decision, {}, nullptr).verdict, kFail);
  EXPECT_EQ(judge_choice<TypeParam>(observed, decision, std::vector<double>(4, 0.0625), nullptr).verdict, kFail);
  EXPECT_EQ(judge_choice<TypeParam>(observed, decision, {9.0, 0.0, 0.0, 9.0}, nullptr).verdict, kFail);
  const Check check = judge_choice<TypeParam>(observed, decision, std::vector<double>(4, 0.125), nullptr);
  EXPECT_EQ(check.verdict, kPass);
  EXPECT_EQ(check.rows_by_margin, 1);
  EXPECT_NE(check.reason.find("within the margin"), std::string::npos);
}

TYPED_TEST(JudgeChoice, a_nan_limit_excuses_nothing) {
  const auto decision = experts<TypeParam>({3, 2, 1.75, 1}, {0, 1}, 0.25, {});
  EXPECT_EQ(judge_choice<TypeParam>(ids({1, 2}, {0, 2}), decision, std::vector<double>(4, kNaN), nullptr).verdict,
            kFail);
}

TYPED_TEST(JudgeChoice, unexplained_row_is_named_with_both_sets) {
  const auto decision = experts<TypeParam>({3, 2, 1, 0}, {0, 1}, 1.0, {}, 3);
  const Check check = judge_choice<TypeParam>(ids({3, 2}, {1, 0, 3, 0, 2, 3}), decision, {}, nullptr);
  EXPECT_EQ(check.verdict, kFail);
  EXPECT_EQ(check.rows_equal, 1);
  EXPECT_EQ(check.rows_unexplained, 2);
  EXPECT_NE(check.reason.find("2 of 3 rows"), std::string::npos);
  EXPECT_NE(check.reason.find("row 1: chose {0, 3}, the reference {0, 1}, margin 1"), std::string::npos)
      << check.reason;
}

TYPED_TEST(JudgeChoice, an_id_beyond_the_candidates_is_unexplained) {
  const auto decision = experts<TypeParam>({3, 2, 2, 1}, {0, 1}, 0.0, {1, 2});
  const std::vector<double> wide(4, 100.0);
  EXPECT_EQ(judge_choice<TypeParam>(ids({1, 2}, {0, 4}), decision, wide, nullptr).verdict, kFail);
  EXPECT_EQ(judge_choice<TypeParam>(ids({1, 2}, {0, std::int64_t{1} << 62}), decision, wide, nullptr).verdict, kFail);
}

TYPED_TEST(JudgeChoice, a_selection_that_selects_everything_is_mistrusted) {
  const auto decision = experts<TypeParam>({3, 2}, {0, 1}, kInf, {}, 2);
  const Check check = judge_choice<TypeParam>(ids({2, 2}, {0, 1, 1, 0}), decision, {}, nullptr);
  EXPECT_EQ(check.verdict, Verdict::kMistrusted);
  EXPECT_EQ(check.reason, "every row selects everything it may see");
  EXPECT_EQ(judge_choice<TypeParam>(ids({2, 2}, {0, 1, 1, -1}), decision, {}, nullptr).verdict, kFail);
}

TYPED_TEST(JudgeChoice, what_is_no_table_of_ids_is_told) {
  const auto decision = experts<TypeParam>({3, 2, 1}, {0, 1}, 1.0, {}, 2);
  const Tensor reals = Tensor::from_reals(DType::kF32, {2, 2}, std::vector<double>{0, 1, 0, 1});
  EXPECT_THROW(judge_choice<TypeParam>(reals, decision, {}, nullptr), InputError);
  const Check check = judge_choice<TypeParam>(ids({3}, {0, 1, 0}), decision, {}, nullptr);
  EXPECT_EQ(check.verdict, kFail);
  EXPECT_EQ(check.reason, "recorded shape [3], 2 rows are needed");
}

TYPED_TEST(JudgeChoice, no_rows_are_mistrusted) {
  const auto decision = experts<TypeParam>({3, 2, 1}, {0, 1}, 1.0, {}, 0);
  const Check check = judge_choice<TypeParam>(ids({0, 2}, {}), decision, {}, nullptr);
  EXPECT_EQ(check.verdict, Verdict::kMistrusted);
  EXPECT_EQ(check.reason, "nothing was compared");
}

TYPED_TEST(JudgeChoice, the_observed_choice_is_adopted_in_tied_rows_only) {
  const auto decision = experts<TypeParam>({3, 2, 2, 1}, {0, 1}, 0.0, {1, 2}, 3);
  Index adopted = decision.chosen;
  judge_choice<TypeParam>(ids({3, 2}, {1, 0, 2, 0, 0, 3}), decision, {}, &adopted);
  EXPECT_EQ(adopted.data, (std::vector<std::int64_t>{0, 1, 2, 0, 0, 1}));
  adopted = decision.chosen;
  judge_choice<TypeParam>(ids({3, 3}, {1, -1, 0, 2, -1, 0, -1, 0, 2}), decision, {}, &adopted);
  EXPECT_EQ(adopted.data, (std::vector<std::int64_t>{0, 1, 2, 0, 0, 2})) << "a -1 takes no id's place";
}

/// One query that sees tokens 0 to 6: pools of two tokens at 0, 2, 4 (6 is the tail), two of them selected.
template <class T>
Decision<T> pools(std::int64_t visible_end = 7) {
  Decision<T> decision = experts<T>({3, 2, 2}, {0, 1, 2, 3, 6}, 0.0, {1, 2});
  decision.first_token = Index({3}, {0, 2, 4});
  decision.kpool = 2;
  decision.visible_start = Index({1}, {0});
  decision.visible_end = Index({1}, {visible_end});
  return decision;
}

TYPED_TEST(JudgeChoice, tokens_stand_for_their_pools) {
  const Check whole = judge_choice<TypeParam>(ids({1, 5}, {5, 4, 0, 1, 6}), pools<TypeParam>(), {}, nullptr);
  EXPECT_EQ(whole.verdict, kPass) << whole.reason;
  EXPECT_EQ(whole.rows_tied, 1);
  const Check tail = judge_choice<TypeParam>(ids({1, 5}, {0, 1, 2, 3, 5}), pools<TypeParam>(), {}, nullptr);
  EXPECT_EQ(tail.verdict, kFail) << "the tail is no candidate";
}

TYPED_TEST(JudgeChoice, half_a_pool_is_no_legal_outcome_of_a_tie) {
  EXPECT_EQ(judge_choice<TypeParam>(ids({1, 5}, {0, 1, 2, 5, 6}), pools<TypeParam>(), {}, nullptr).verdict, kFail);
}

TYPED_TEST(JudgeChoice, a_pool_that_is_not_wholly_visible_is_unexplained) {
  const std::vector<double> wide(3, 100.0);
  EXPECT_EQ(judge_choice<TypeParam>(ids({1, 5}, {0, 1, 4, 5, 6}), pools<TypeParam>(5), wide, nullptr).verdict, kFail);
}

}  // namespace
}  // namespace assay::harness
