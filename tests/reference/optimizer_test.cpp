// The optimizer by hand. Numbers: T29 and T81 of shared/cases/public_reports.md; everything else is computed here from
// the formulas of reference/train/optimizer.h in Real.
#include "reference/train/optimizer.h"

#include <cmath>

#include <gtest/gtest.h>

#include "reference/ops/norm_backward.h"

namespace assay::reference {
namespace {

Context precise(int bits = 192) {
  Context result;
  result.bits = bits;
  return result;
}

/// |found - expected| <= 2^-160 |expected|: two evaluations at 192 bits.
void expect_close(const Real& found, const Real& expected) {
  EXPECT_TRUE(abs(Real(found - expected)) <= ldexp(Real(abs(expected)), -160))
      << found.convert_to<double>() << " is not " << expected.convert_to<double>();
}

constexpr AdamWSettings kSettings{.lr = 0.002, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

/// Two steps of one number with constant names as in the paper: biases corrected in the moments themselves.
Real two_steps(const Real& start, const Real& g1, const Real& g2, double weight_decay) {
  const Real lr(kSettings.lr), b1(kSettings.beta1), b2(kSettings.beta2), eps(kSettings.eps), wd(weight_decay);
  const Real m1 = (1 - b1) * g1, v1 = (1 - b2) * g1 * g1;
  const Real m1_hat = m1 / (1 - b1), v1_hat = v1 / (1 - b2);
  const Real p1 = start - lr * wd * start - lr * m1_hat / (sqrt(v1_hat) + eps);
  const Real m2 = b1 * m1 + (1 - b1) * g2, v2 = b2 * v1 + (1 - b2) * g2 * g2;
  const Real m2_hat = m2 / (1 - b1 * b1), v2_hat = v2 / (1 - b2 * b2);
  return p1 - lr * wd * p1 - lr * m2_hat / (sqrt(v2_hat) + eps);
}

struct Decay {
  Shape shape;
  double weight_decay, applied;
};

class AdamW : public testing::TestWithParam<Decay> {};

TEST_P(AdamW, two_steps_are_those_of_the_paper) {
  const ContextScope scope(precise());
  const std::vector<double> start = {0.5, -1.25, 3.0, 0.0}, g1 = {0.25, -0.5, 1e-9, 2.0}, g2 = {-0.125, -0.5, 0.0, 1.0};
  const auto array = [&](const std::vector<double>& values) {
    return Array<Real>(GetParam().shape, std::vector<Real>(values.begin(), values.end()));
  };
  AdamWSettings settings = kSettings;
  settings.weight_decay = GetParam().weight_decay;
  Array<Real> parameter = array(start);
  Moments<Real> moments;
  adamw(parameter, array(g1), moments, 1, settings);
  adamw(parameter, array(g2), moments, 2, settings);
  for (std::size_t i = 0; i < start.size(); ++i)
    expect_close(parameter.data[i], two_steps(Real(start[i]), Real(g1[i]), Real(g2[i]), GetParam().applied));
  EXPECT_EQ(moments.first.shape, GetParam().shape);
}

INSTANTIATE_TEST_SUITE_P(Decay, AdamW,
                         testing::Values(Decay{{2, 2}, 0.1, 0.1}, Decay{{2, 2}, 0.0, 0.0}, Decay{{4}, 0.1, 0.0},
                                         Decay{{4}, 0.0, 0.0}, Decay{{1, 2, 2}, 0.1, 0.1}));

TEST(AdamWScalars, balls_contain_the_precise_parameter) {
  const auto run = [](auto zero) {
    using T = decltype(zero);
    Array<T> parameter({1, 1}, {T(0.75)});
    Moments<T> moments;
    for (std::int64_t t = 1; t <= 5; ++t)
      adamw(parameter, Array<T>({1, 1}, {T(0.5 - 0.25 * static_cast<double>(t))}), moments, t, kSettings);
    return parameter[0];
  };
  const ContextScope scope(precise());
  const Real truth = run(Real(0));
  const Ball ball = run(Ball(0.0));
  EXPECT_TRUE(arb_overlaps(ball.data(), to_ball(truth).data()));
  EXPECT_LT(radius(ball), 1e-50);
  EXPECT_NEAR(run(0.0), truth.convert_to<double>(), 1e-15);
}

TEST(Clip, is_one_up_to_the_limit_and_the_quotient_above) {
  const ContextScope scope(precise());
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_factor(0.999, 1.0), 1.0);
  EXPECT_EQ(clip_factor(1.0 - 1e-6, 1.0), 1.0);
  EXPECT_LT(clip_factor(1.0, 1.0), 1.0) << "1e-6 is added to the norm";
  EXPECT_EQ(clip_factor(1e300, 0.0), 1.0) << "0 is no clipping";
  expect_close(clip_factor(Real(4), 1.0), Real(1) / (Real(4) + Real(1e-6)));
  expect_close(clip_factor(Real(5), 2.5), Real(2.5) / (Real(5) + Real(1e-6)));
}

TEST(LearningRate, warms_up_linearly_and_then_stays) {
  const Schedule schedule{.lr = 0.4, .warmup = 4};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(1), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(3), 0.4);
  EXPECT_EQ(schedule.at(4), 0.4);
  EXPECT_EQ(schedule.at(1000000), 0.4);
}

TEST(LearningRate, is_constant_without_warm_up) {
  const Schedule schedule{.lr = 0.002};
  EXPECT_EQ(schedule.at(0), 0.002);
  EXPECT_EQ(schedule.at(19), 0.002);
}

TEST(LearningRate, falls_on_a_cosine_from_lr_to_min_lr) {
  const Schedule schedule{.kind = Schedule::Kind::kCosine, .lr = 1.0, .min_lr = 0.1, .warmup = 10, .decay_steps = 110};
  EXPECT_DOUBLE_EQ(schedule.at(9), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(10), 1.0);
  EXPECT_NEAR(schedule.at(60), 0.55, 1e-15);
  EXPECT_NEAR(schedule.at(35), 0.1 + 0.45 * (1.0 + std::sqrt(0.5)), 1e-15);  // cos(pi/4)
  EXPECT_EQ(schedule.at(110), 0.1);
  EXPECT_EQ(schedule.at(1000), 0.1);
  for (std::int64_t step = 10; step < 110; ++step) EXPECT_GT(schedule.at(step), schedule.at(step + 1));
}

TEST(NumZeros, counts_exact_zeros_of_both_signs_and_nothing_else) {
  Tensors<double> gradients;
  gradients["a"] = Array<double>({2, 2}, {0.0, -0.0, 1e-320, -1.0});
  gradients["b"] = Array<double>({3}, {0.0, 0.5, 0.0});
  EXPECT_EQ(num_zeros(gradients), 4);
  const ContextScope scope(precise());
  Tensors<Ball> balls;
  balls["a"] = Array<Ball>({2}, {Ball(0.0), Ball(1.0) / Ball(3.0) - Ball(1.0) / Ball(3.0)});
  EXPECT_EQ(num_zeros(balls), 1) << "a ball around zero is not zero for certain";
}

TEST(GradientNorm, groups_hold_the_tensors_whose_name_contains_them) {
  Tensors<double> gradients;
  gradients["layers.0.attn.weight"] = Array<double>({1}, {3.0});
  gradients["layers.0.mlp.weight"] = Array<double>({2}, {4.0, 12.0});
  gradients["layers.1.mlp.bias"] = Array<double>({1}, {84.0});
  EXPECT_DOUBLE_EQ(gradient_norm(gradients), std::sqrt(9.0 + 16.0 + 144.0 + 7056.0));  // 85
  const std::map<std::string, double> norms = gradient_norms(gradients, {"weight", "mlp", "layers.0.", "none"});
  EXPECT_DOUBLE_EQ(norms.at("weight"), 13.0);
  EXPECT_DOUBLE_EQ(norms.at("mlp"), std::sqrt(160.0 + 7056.0));
  EXPECT_DOUBLE_EQ(norms.at("layers.0."), 13.0);
  EXPECT_EQ(norms.at("none"), 0.0);
  EXPECT_EQ(gradient_norm(Tensors<double>{}), 0.0);
}

TEST(GradientNorm, T81_a_replicated_gradient_counts_once) {
  const ContextScope scope(precise());
  const Array<Real> replicated({1}, {Real(3)});
  Tensors<Real> gradients{{"replicated", replicated}};
  gradients["sharded, rank 0"] = Array<Real>({2}, {Real(2), Real(2)});
  gradients["sharded, rank 1"] = Array<Real>({2}, {Real(-2), Real(2)});
  EXPECT_EQ(gradient_norm(gradients), Real(5));
  gradients["replicated, counted again"] = replicated;
  EXPECT_NEAR(gradient_norm(gradients).convert_to<double>(), 5.830951895, 5e-10);
}

// One head per rank, o / rms(o) = 1 and sigmoid(0) = 1/2: the local gradient is half of the cotangent.
TEST(SharedWeight, T29_its_gradient_is_the_sum_over_the_heads_of_all_ranks) {
  const auto gradient = [](const std::vector<double>& cotangents) {
    const auto heads = static_cast<std::int64_t>(cotangents.size());
    const Array<double> o({1, heads, 1}, std::vector<double>(cotangents.size(), 1.0)), z({1, heads, 1}),
        dy({1, heads, 1}, cotangents);
    return gated_rms_norm_backward(o, z, Array<double>({1}, {1.0}), 0.0, dy).d_weight;
  };
  EXPECT_EQ(gradient({2.0}).data, std::vector<double>{1.0});
  EXPECT_EQ(gradient({4.0}).data, std::vector<double>{2.0});
  EXPECT_EQ(gradient({2.0, 4.0}).data, std::vector<double>{3.0});
}

}  // namespace
}  // namespace assay::reference
