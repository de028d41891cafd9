#include "reference/ops/router.h"

#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "cases/formats.h"
#include "reference/decide.h"

namespace assay::reference {
namespace {

using Ids = std::vector<std::int64_t>;

template <class T>
Array<T> array(Shape shape, const std::vector<double>& values) {
  return Array<T>(std::move(shape), std::vector<T>(values.begin(), values.end()));
}

/// Routes one token whose logits are the weight column itself (x = 1).
template <class T>
Routing<T> route_logits(const std::vector<double>& logits, const std::vector<double>& bias, const RouterRule& rule) {
  const auto experts = static_cast<std::int64_t>(logits.size());
  return route(array<T>({1, 1}, {1}), array<T>({experts, 1}, logits),
               bias.empty() ? Array<T>() : array<T>({experts}, bias), rule);
}

const std::vector<double> kT69Logits = {0, 0.02, -0.02, 0.01};
const std::vector<double> kT69Bias = {6.9390, 6.9300, 6.9499, 6.9050};

TEST(Router, T69_the_bias_chooses_and_never_weighs) {
  const RouterRule rule{.topk = 2, .scale = 2.5};
  const Routing<Ball> routing = route_logits<Ball>(kT69Logits, kT69Bias, rule);
  EXPECT_EQ(routing.experts.data, (Ids{2, 0}));
  EXPECT_NEAR(midpoint(routing.weights[0]), 1.243718803, 5e-10);
  EXPECT_NEAR(midpoint(routing.weights[1]), 1.256281197, 5e-10);
  // With the bias in the weight.
  const double leaked_2 = 1 / (1 + std::exp(0.02)) + 6.9499, leaked_0 = 0.5 + 6.9390;
  EXPECT_NEAR(2.5 * leaked_2 / (leaked_2 + leaked_0), 1.250495516, 5e-10);
  EXPECT_NEAR(2.5 * leaked_0 / (leaked_2 + leaked_0), 1.249504484, 5e-10);
}

TEST(Router, T69_a_bias_rounded_to_bf16_chooses_others) {
  std::vector<double> bias;
  for (const double value : kT69Bias) bias.push_back(rounded(bf16(), value));
  EXPECT_EQ(bias, (std::vector<double>{6.9375, 6.9375, 6.9375, 6.90625}));
  EXPECT_EQ(route_logits<Ball>(kT69Logits, bias, {.topk = 2}).experts.data, (Ids{1, 0}));
}

TEST(Router, T69_all_scalars_choose_and_weigh_alike) {
  const ContextScope real_precision(context());
  const RouterRule rule{.topk = 2, .scale = 2.5};
  const Routing<Ball> ball = route_logits<Ball>(kT69Logits, kT69Bias, rule);
  const Routing<Real> real = route_logits<Real>(kT69Logits, kT69Bias, rule);
  const Routing<Bound> bound = route_logits<Bound>(kT69Logits, kT69Bias, rule);
  const Routing<double> fast = route_logits<double>(kT69Logits, kT69Bias, rule);
  EXPECT_EQ(real.experts.data, ball.experts.data);
  EXPECT_EQ(bound.experts.data, ball.experts.data);
  EXPECT_EQ(fast.experts.data, ball.experts.data);
  for (std::int64_t i = 0; i < 2; ++i) {
    EXPECT_LE(midpoint(abs(ball.weights[i] - to_ball(real.weights[i]))), 1e-35);
    EXPECT_LE(std::abs(fast.weights[i] - midpoint(ball.weights[i])), bound.weights[i].e);
    EXPECT_LE(bound.weights[i].e, 1e-13);
  }
}

TEST(Router, T71_choice_scores_below_a_sentinel_still_win) {
  const std::vector<double> bias = {-2, -2.1, -2.2, -2.3};
  const Routing<Ball> routing = route_logits<Ball>({0, 0, 0, 0}, bias, {.topk = 2});
  EXPECT_EQ(routing.experts.data, (Ids{0, 1}));
  for (const double value : bias) EXPECT_LT(0.5 + value, -1.0) << "-1 is no sentinel";
  // The same inside a group: an excluded expert with "score 0" would beat every allowed one.
  const Routing<Ball> grouped = route_logits<Ball>({0, 0, 0, 0, 0, 0, 0, 0}, {-2, -2.1, -2.2, -2.3, -3, -3, -3, -3},
                                                   {.topk = 3, .n_group = 2, .topk_group = 1});
  EXPECT_EQ(grouped.experts.data, (Ids{0, 1, 2}));
}

TEST(Router, T72_renormalisation_and_scale_are_independent_switches) {
  // Scores 0.8 and 0.6.
  const std::vector<double> logits = {std::log(4.0), std::log(1.5)};
  const auto weights = [&](bool norm) {
    return route_logits<double>(logits, {}, {.topk = 2, .norm_topk_prob = norm, .scale = 2.5}).weights;
  };
  EXPECT_NEAR(weights(true)[0], 1.4285714, 5e-8);
  EXPECT_NEAR(weights(true)[1], 1.0714286, 5e-8);
  EXPECT_NEAR(weights(false)[0], 2.0, 1e-14);
  EXPECT_NEAR(weights(false)[1], 1.5, 1e-14);
}

TEST(Router, T72_the_sum_of_288_scores_of_one_half_is_144) {
  Index all({1, 288});
  std::iota(all.data.begin(), all.data.end(), 0);
  const Array<Ball> weights = route_weights(Array<Ball>({1, 288}), all, {.topk = 288, .sum_eps = 0.0});
  EXPECT_TRUE(overlap(weights[0], Ball(0.5) / Ball(144.0)));
  double in_bf16 = 0.0;
  for (int i = 0; i < 288; ++i) in_bf16 = rounded(bf16(), in_bf16 + 0.5);
  EXPECT_EQ(in_bf16, 128.0);
  EXPECT_FALSE(overlap(weights[0], Ball(0.5) / Ball(in_bf16)));
}

TEST(Router, T72_tiny_scores_are_held_down_by_the_eps_of_the_sum) {
  const RouterRule rule{.topk = 2};
  EXPECT_NEAR(midpoint(route_logits<Ball>({-60, -61}, {}, rule).weights[0]), 8.7565e-7, 5e-12);
  RouterRule without = rule;
  without.sum_eps = 0.0;
  EXPECT_NEAR(midpoint(route_logits<Ball>({-60, -61}, {}, without).weights[0]), 0.7311, 5e-5);
}

TEST(Router, equal_logits_tie_and_go_to_the_lowest_index) {
  const Routing<double> routing = route_logits<double>({0.3, 0.3, 0.3, 0.3}, {}, {.topk = 2});
  EXPECT_EQ(routing.experts.data, (Ids{0, 1}));
  EXPECT_EQ(routing.margin[0], 0.0);
  EXPECT_EQ(routing.tied[0], (Ids{0, 1, 2, 3}));
}

TEST(Router, a_near_tie_beyond_128_bits_is_decided) {
  // Two logits that saturate the sigmoid: they differ by exp(-100) exp(-1) in the score, far below 2^-128.
  const Routing<double> routing = route_logits<double>({100, 101, 99}, {}, {.topk = 1});
  EXPECT_EQ(routing.experts.data, (Ids{1}));
  EXPECT_TRUE(routing.tied[0].empty());
  EXPECT_EQ(route_logits<double>({1000, 1001}, {}, {.topk = 1}).experts.data, (Ids{1}));
}

TEST(Router, group_score_is_the_sum_of_its_two_best) {
  // Group 0 has the best expert, group 1 the best pair.
  const std::vector<double> bias = {9, 0, 0, 5, 5, 1};
  const RouterRule rule{.topk = 2, .n_group = 2, .topk_group = 1};
  const Routing<Ball> routing = route_logits<Ball>({0, 0, 0, 0, 0, 0}, bias, rule);
  EXPECT_EQ(routing.experts.data, (Ids{3, 4}));
  EXPECT_DOUBLE_EQ(routing.group_margin[0], 1.0);
  EXPECT_DOUBLE_EQ(routing.margin[0], 4.0);
  EXPECT_EQ(route_logits<Ball>({0, 0, 0, 0, 0, 0}, bias, {.topk = 2}).experts.data, (Ids{0, 3})) << "without groups";
}

TEST(Router, groups_of_one_expert_are_scored_by_it) {
  const Routing<Ball> routing = route_logits<Ball>({0, 3, 1, 2}, {}, {.topk = 2, .n_group = 4, .topk_group = 2});
  EXPECT_EQ(routing.experts.data, (Ids{1, 3}));
}

TEST(Router, equal_groups_tie_and_go_to_the_lowest_index) {
  const Routing<double> routing =
      route_logits<double>({0, 1, 1, 0, 1, 0}, {}, {.topk = 1, .n_group = 3, .topk_group = 2});
  EXPECT_EQ(routing.group_tied[0], (Ids{0, 1, 2}));
  EXPECT_EQ(routing.group_margin[0], 0.0);
  EXPECT_EQ(routing.experts.data, (Ids{1}));
}

TEST(Router, operands_that_are_wide_balls_are_undecided) {
  Array<Ball> weight = array<Ball>({2, 1}, {0.5, 0.6});
  mag_set_d(arb_radref(weight[0].data()), 1.0);
  EXPECT_THROW(route(array<Ball>({1, 1}, {1}), weight, {}, {.topk = 1}), Undecided);
}

TEST(Router, rules_that_do_not_fit_are_input_errors) {
  EXPECT_THROW(route_logits<double>({0, 1, 2}, {}, {.topk = 4}), InputError);
  EXPECT_THROW(route_logits<double>({0, 1, 2}, {}, {.topk = 1, .n_group = 2}), InputError);
  EXPECT_THROW(route_logits<double>({0, 1, 2, 3}, {}, {.topk = 3, .n_group = 2}), InputError);
  EXPECT_THROW(route_logits<double>({0, 1}, {}, {.topk = 1, .topk_group = 2}), InputError);
  EXPECT_THROW(route_logits<double>({0, std::nan("")}, {}, {.topk = 1}), InputError);
  EXPECT_THROW(route_weights(array<double>({1, 2}, {0, 1}), Index({1, 1}, {2}), {.topk = 1}), InputError);
}

TEST(Combine, adds_weighted_experts_and_the_shared_one) {
  const Array<Ball> out = array<Ball>({1, 2, 2}, {1, 2, 3, 4}), weights = array<Ball>({1, 2}, {0.5, 2});
  const Array<Ball> routed = combine(out, weights, {});
  EXPECT_TRUE(contains(routed[0], 6.5));
  EXPECT_TRUE(contains(routed[1], 9.0));
  const Array<Ball> y = combine(out, weights, array<Ball>({1, 2}, {10, 20}));
  EXPECT_TRUE(contains(y[0], 16.5));
  EXPECT_TRUE(contains(y[1], 29.0));
}

TEST(RouterOps, the_router_op_returns_every_declared_output) {
  OpTable<double> table;
  add_router_ops(table);
  const std::vector<double> x = {1, -1}, w = {0.5, 1, 2, -1, 0, 3};
  const OpCall call = make_call(
      op_named("router"), {{"topk", 2}, {"scale", 2.5}},
      {{"x", Tensor::from_reals(DType::kF64, {1, 2}, x)}, {"weight", Tensor::from_reals(DType::kF64, {3, 2}, w)}});
  const Results<double> results = table.at("router")(Call<double>(call));
  for (const OperandSpec& output : call.spec->outputs) EXPECT_EQ(results.count(output.name), 1U) << output.name;
  EXPECT_EQ(std::get<Index>(results.at("experts")).data, (Ids{1, 0}));
}

}  // namespace
}  // namespace assay::reference
