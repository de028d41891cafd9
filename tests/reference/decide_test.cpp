#include "reference/decide.h"

#include <limits>

#include <gtest/gtest.h>

#include "cases/error.h"
#include "reference/scalar.h"

namespace assay::reference {
namespace {

using Indices = std::vector<std::int64_t>;

TopK best_of(const std::vector<double>& scores, std::int64_t k) {
  Indices candidates;
  for (std::size_t i = 0; i < scores.size(); ++i) candidates.push_back(static_cast<std::int64_t>(i));
  return top_k(
      candidates, k, [&](std::int64_t i) { return Ball(scores[static_cast<std::size_t>(i)]); }, true);
}

Ball with_radius(double value, double error) {
  Ball result(value);
  mag_set_d(arb_radref(result.data()), error);
  return result;
}

TEST(TopK, separated_scores_come_in_descending_order_with_their_margin) {
  const TopK best = best_of({0.5, 3.0, -1.0, 2.0}, 2);
  EXPECT_EQ(best.winners, (Indices{1, 3}));
  EXPECT_EQ(best.margin, 1.5);
  EXPECT_TRUE(best.tied.empty());
}

TEST(TopK, scores_that_differ_by_1e_minus_60_are_told_apart_at_a_higher_precision) {
  int highest_bits = 0;
  const auto score = [&](std::int64_t i) {
    highest_bits = std::max(highest_bits, context().bits);
    return Ball(1.0) + Ball(static_cast<double>(i)) * pow(Ball(10.0), Ball(-60.0));
  };
  const int bits_before = context().bits;
  ASSERT_EQ(bits_before, 128);
  const TopK best = top_k({0, 1, 2, 3}, 2, score, true);
  EXPECT_EQ(best.winners, (Indices{3, 2}));
  EXPECT_NEAR(best.margin, 1e-60, 1e-70);
  EXPECT_TRUE(best.tied.empty());
  EXPECT_EQ(highest_bits, 256) << "128 bits hold 38 digits, 256 hold 77";
  EXPECT_EQ(context().bits, bits_before) << "the caller's precision is untouched";
}

TEST(TopK, an_exact_tie_is_reported_and_goes_to_the_lowest_index) {
  const TopK best = best_of({1.0, 2.0, 1.0, 5.0, 1.0, 0.0}, 3);
  EXPECT_EQ(best.winners, (Indices{3, 1, 0}));
  EXPECT_EQ(best.tied, (Indices{0, 2, 4}));
  EXPECT_EQ(best.margin, 0.0);
}

TEST(TopK, equal_scores_that_all_win_are_no_tie) {
  const TopK best = best_of({1.0, 2.0, 2.0, 0.0}, 2);
  EXPECT_EQ(best.winners, (Indices{1, 2}));
  EXPECT_TRUE(best.tied.empty());
  EXPECT_EQ(best.margin, 1.0);
}

TEST(TopK, scores_equal_at_the_cap_are_a_tie) {
  // sqrt(2)^2 is 2, but no precision proves it.
  const auto score = [](std::int64_t i) { return i == 0 ? Ball(2.0) : sqrt(Ball(2.0)) * sqrt(Ball(2.0)); };
  const TopK best = top_k({0, 1, 2}, 1, score, true);
  EXPECT_EQ(best.winners, (Indices{0}));
  EXPECT_EQ(best.tied, (Indices{0, 1, 2}));
  EXPECT_EQ(best.margin, 0.0);
}

TEST(TopK, operands_that_are_balls_throw_Undecided_unless_ties_are_final) {
  const auto score = [](std::int64_t i) { return with_radius(1.0 + 1e-3 * static_cast<double>(i), 1e-2); };
  EXPECT_THROW(top_k({0, 1}, 1, score, false), Undecided);

  Context last = context();
  last.ties_are_final = true;
  const ContextScope scope(last);
  const TopK best = top_k({0, 1}, 1, score, false);
  EXPECT_EQ(best.winners, (Indices{0}));
  EXPECT_EQ(best.tied, (Indices{0, 1}));
}

TEST(TopK, a_wide_loser_in_the_middle_makes_only_its_neighbours_unclear) {
  Context last = context();
  last.ties_are_final = true;
  const ContextScope scope(last);
  const std::vector<Ball> scores = {Ball(10.0), with_radius(5.0, 1.0), Ball(4.5), Ball(1.0)};
  const auto score = [&](std::int64_t i) { return scores[static_cast<std::size_t>(i)]; };
  const TopK best = top_k({0, 1, 2, 3}, 2, score, false);
  EXPECT_EQ(best.winners, (Indices{0, 1}));
  EXPECT_EQ(best.tied, (Indices{1, 2}));
}

TEST(TopK, negative_zero_ties_with_zero) {
  const TopK best = best_of({-0.0, 0.0, -0.0}, 1);
  EXPECT_EQ(best.winners, (Indices{0}));
  EXPECT_EQ(best.tied, (Indices{0, 1, 2}));
}

TEST(TopK, fewer_candidates_than_k_all_win_with_an_infinite_margin) {
  const TopK best = best_of({1.0, 2.0}, 5);
  EXPECT_EQ(best.winners, (Indices{1, 0}));
  EXPECT_EQ(best.margin, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(best_of({}, 3).winners.empty());
  EXPECT_TRUE(best_of({1.0}, 0).winners.empty());
}

TEST(TopK, a_score_that_is_not_a_number_is_an_input_error) {
  EXPECT_THROW(best_of({1.0, std::numeric_limits<double>::quiet_NaN(), 2.0}, 1), InputError);
}

}  // namespace
}  // namespace assay::reference
