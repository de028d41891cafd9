// Hyper-connections: mapping, aggregation, mixing and contraction. Expected numbers: shared/cases/public_reports.md
// part 3 (T..).
#include "reference/ops/mhc.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "cases/formats.h"

namespace assay::reference {
namespace {

const std::vector<double> kT06 = {2, 0, -1, 0, 0, 0, 1, -2, 1, -1, 0, 0, -1, 3, 0, 1};

template <class T>
Array<T> array(Shape shape, const std::vector<double>& values) {
  return Array<T>(std::move(shape), std::vector<T>(values.begin(), values.end()));
}

template <class T>
Array<T> constants(Shape shape, double value) {
  Array<T> result(std::move(shape));
  for (T& v : result.data) v = T(value);
  return result;
}

/// Values with the spread of activations, exact in float32.
std::vector<double> seeded(std::int64_t count, std::uint64_t seed, double scale = 1.0) {
  std::mt19937_64 random(seed);
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(scale * (static_cast<double>(random() >> 44) * 0x1p-19 - 1.0));
  return values;
}

/// The mapping of streams x [1, n, C] by weights that are 0 except for the first row (pre of stream 0).
template <class T>
Mapping<T> mapped(const Array<T>& x, double first_row, const MappingOptions& options) {
  const std::int64_t n = x.dim(1), outputs = n * n + 2 * n;
  Array<T> weight = constants<T>({outputs, n * x.dim(2)}, 0.0);
  for (std::int64_t k = 0; k < weight.dim(1); ++k) weight[k] = T(first_row);
  return mhc_mapping(x, weight, constants<T>({3}, 1.0), constants<T>({outputs}, 0.0), options);
}

template <class T>
Array<T> mixed(const std::vector<double>& residual, const Array<T>& h_res, double post, double branch) {
  const auto n = static_cast<std::int64_t>(residual.size());
  return mhc_mix(array<T>({1, n, 1}, residual), array<T>({1, 1}, {branch}), constants<T>({1, n}, post),
                 h_res.reshaped({1, n, n}), Array<T>());
}

Array<Ball> comb(const std::vector<double>& logits) { return sinkhorn(array<Ball>({4, 4}, logits), 20, 1e-6).h_res; }

/// Logits 0 on i -> i+1 and -60 elsewhere: the cyclic shift.
Array<Ball> cyclic_comb() {
  std::vector<double> logits(16, -60.0);
  for (std::size_t i = 0; i < 4; ++i) logits[4 * i + (i + 1) % 4] = 0.0;
  return comb(logits);
}

Array<Ball> transposed(const Array<Ball>& m) {
  Array<Ball> result(m.shape);
  for (std::int64_t i = 0; i < 4; ++i)
    for (std::int64_t j = 0; j < 4; ++j) result.at(i, j) = m.at(j, i);
  return result;
}

void expect_values(const Array<Ball>& found, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(found.data.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(midpoint(found.data[i]), expected[i], tolerance) << i;
}

TEST(MhcMapping, T01_eps_is_added_inside_the_root) {
  const Array<Ball> x = constants<Ball>({1, 4, 1}, 1e-3);
  const Mapping<Ball> right = mapped(x, 0.25, {});
  EXPECT_NEAR(midpoint(Ball(right.inverse_rms[0] * x[0])), 0.301511344578, 5e-13);
  EXPECT_NEAR(midpoint(right.h_pre[0]) - 1e-6, 0.57481194, 5e-9);
  // Outside the root, with the model's eps and with Megatron's older 1e-6.
  const Mapping<Ball> outside = mapped(x, 0.25, {.norm_eps = 1e-5, .norm_eps_inside_sqrt = false});
  EXPECT_NEAR(midpoint(Ball(outside.inverse_rms[0] * x[0])), 0.990099, 5e-7);
  const Mapping<Ball> older = mapped(x, 0.25, {.norm_eps = 1e-6, .norm_eps_inside_sqrt = false});
  EXPECT_NEAR(midpoint(Ball(older.inverse_rms[0] * x[0])), 0.999001, 5e-7);
  EXPECT_NEAR(midpoint(older.h_pre[0]) - 1e-6, 0.73086212, 5e-9);
}

TEST(MhcMapping, T01_values_of_one_cannot_tell_the_two_forms_apart_in_bf16) {
  const Array<Ball> x = constants<Ball>({1, 4, 1}, 1.0);
  const double inside = midpoint(mapped(x, 0.25, {}).inverse_rms[0]);
  const double outside = midpoint(mapped(x, 0.25, {.norm_eps = 1e-6, .norm_eps_inside_sqrt = false}).inverse_rms[0]);
  EXPECT_NEAR(inside, 0.999995000, 5e-10);
  EXPECT_NEAR(outside, 0.999999000, 5e-10);
  EXPECT_EQ(rounded(bf16(), inside), rounded(bf16(), outside));
}

TEST(MhcMapping, T03_a_token_of_zeros_is_finite) {
  for (const bool inside : {true, false}) {
    const Mapping<Ball> m = mapped(constants<Ball>({1, 4, 2}, 0.0), 1.0, {.norm_eps_inside_sqrt = inside});
    for (const Ball& value : m.mapping_logits.data) EXPECT_TRUE(certainly_equal(value, Ball(0.0)));
    expect_values(m.h_pre, std::vector<double>(4, 0.500001), 1e-15);
    expect_values(m.h_post, std::vector<double>(4, 1.0), 0.0);
    expect_values(m.h_res, std::vector<double>(16, 0.24999975), 1e-12);
  }
}

TEST(MhcMapping, T05_the_two_epsilons_move_independently) {
  const Array<Ball> x = constants<Ball>({1, 4, 1}, 1e-3);
  const auto normed = [&](const Mapping<Ball>& m) { return midpoint(Ball(m.inverse_rms[0] * x[0])); };
  const Mapping<Ball> right = mapped(x, 0.0, {.norm_eps = 1e-5, .pre_eps = 1e-6});
  EXPECT_NEAR(normed(right), 0.301511344578, 5e-13);
  EXPECT_NEAR(midpoint(right.h_pre[0]), 0.500001, 1e-15);
  const Mapping<Ball> merged_small = mapped(x, 0.0, {.norm_eps = 1e-6, .pre_eps = 1e-6});
  EXPECT_NEAR(normed(merged_small), 0.707106781187, 5e-13);
  const Mapping<Ball> merged_large = mapped(x, 0.0, {.norm_eps = 1e-5, .pre_eps = 1e-5, .sinkhorn_eps = 1e-5});
  EXPECT_NEAR(midpoint(merged_large.h_pre[0]), 0.50001, 1e-15);
  EXPECT_EQ(normed(merged_large), normed(right));
}

TEST(MhcMapping, T16_a_tiny_eps_dominates_tiny_streams) {
  const Array<Ball> x = constants<Ball>({1, 4, 4}, 1e-11);
  const auto normed = [&](double eps) {
    return midpoint(Ball(mapped(x, 0.0, {.norm_eps = eps}).inverse_rms[0] * x[0]));
  };
  EXPECT_NEAR(normed(1e-20), 0.099503719021, 5e-13);
  EXPECT_NEAR(normed(1e-6), 1e-8, 5e-13);
}

TEST(MhcMapping, rows_are_pre_then_post_then_res_by_source_and_destination) {
  constexpr std::int64_t n = 3, outputs = n * n + 2 * n;
  const std::vector<double> bias = seeded(outputs, 3);
  const std::vector<double> alpha = {0.5, -2.0, 3.0}, x = seeded(n * 2, 5);
  const std::vector<double> weight = seeded(outputs * n * 2, 6);
  const Mapping<double> m = mhc_mapping(array<double>({1, n, 2}, x), array<double>({outputs, n * 2}, weight),
                                        array<double>({3}, alpha), array<double>({outputs}, bias), {});
  double squares = 0.0;
  for (const double v : x) squares += v * v;
  const double r = 1 / std::sqrt(squares / (n * 2) + 1e-5);
  std::vector<double> logits;
  for (std::size_t o = 0; o < outputs; ++o) {
    double projection = 0.0;
    for (std::size_t k = 0; k < n * 2; ++k) projection += weight[o * n * 2 + k] * x[k];
    logits.push_back(r * projection * alpha[o < n ? 0 : (o < 2 * n ? 1 : 2)] + bias[o]);
    EXPECT_NEAR(m.projection[static_cast<std::int64_t>(o)], projection, 1e-14) << "of the raw streams";
    EXPECT_NEAR(m.mapping_logits[static_cast<std::int64_t>(o)], logits.back(), 1e-13);
  }
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_NEAR(m.h_pre[static_cast<std::int64_t>(i)], 1 / (1 + std::exp(-logits[i])) + 1e-6, 1e-14);
    EXPECT_NEAR(m.h_post[static_cast<std::int64_t>(i)], 2 / (1 + std::exp(-logits[n + i])), 1e-14) << "no eps";
  }
  const Array<double> res =
      sinkhorn(array<double>({n, n}, std::vector<double>(logits.begin() + 2 * n, logits.end())), 20, 1e-6).h_res;
  for (std::int64_t i = 0; i < n * n; ++i) EXPECT_NEAR(m.h_res[i], res[i], 1e-13);
}

TEST(MhcMapping, any_number_of_streams_and_iterations_in_all_scalars) {
  for (const std::int64_t n : {1, 2, 3, 4, 8}) {
    for (const std::int64_t iterations : {1, 2, 20, 33}) {
      const std::int64_t outputs = n * n + 2 * n, width = 3;
      const auto run = [&]<class T>(const T*) {
        return mhc_mapping(array<T>({2, n, width}, seeded(2 * n * width, 1)),
                           array<T>({outputs, n * width}, seeded(outputs * n * width, 2)), constants<T>({3}, 0.5),
                           array<T>({outputs}, seeded(outputs, 4)), {.iterations = iterations});
      };
      const Mapping<Ball> ball = run(static_cast<const Ball*>(nullptr));
      const Mapping<double> fast = run(static_cast<const double*>(nullptr));
      const Mapping<Bound> bound = run(static_cast<const Bound*>(nullptr));
      EXPECT_EQ(ball.h_res.shape, (Shape{2, n, n}));
      Context precise;
      precise.bits = 256;
      const ContextScope scope(precise);
      const Mapping<Real> real = run(static_cast<const Real*>(nullptr));
      for (const auto member : {0, 1, 2}) {
        const auto of = [member](const auto& m) -> const auto& {
          return member == 0 ? m.h_pre : (member == 1 ? m.h_post : m.h_res);
        };
        for (std::int64_t i = 0; i < of(ball).size(); ++i) {
          EXPECT_TRUE(arb_contains(of(ball)[i].data(), to_ball(of(real)[i]).data()));
          EXPECT_NEAR(of(fast)[i], midpoint(of(real)[i]), of(bound)[i].e) << "double is one implementation";
          EXPECT_LT(radius(of(ball)[i]), 1e-33);
        }
      }
    }
  }
}

TEST(MhcMix, T09_comb_is_applied_transposed) {
  const Array<Ball> m = comb(kT06);
  expect_values(mixed({1, 2, 3, 4}, m, 0, 0), {1.7611469611, 3.32286518512, 2.27615897527, 2.6398188789}, 6e-11);
  expect_values(mixed({1, 2, 3, 4}, transposed(m), 0, 0), {2.04784245161, 2.65998938059, 2.74182411124, 2.55033405655},
                6e-12);
}

TEST(MhcMix, T09_a_cyclic_shift_shows_the_direction) {
  const Array<Ball> shift = cyclic_comb();
  expect_values(mixed({1, 2, 3, 4}, shift, 0, 0), {3.99999, 1.000005, 2, 2.999995}, 4e-11);
  expect_values(mixed({1, 2, 3, 4}, transposed(shift), 0, 0), {2, 2.999995, 3.99999, 1.000005}, 4e-11);
  for (std::int64_t i = 0; i < 4; ++i) {  // row and column sums alone cannot see it
    Ball row(0.0), column(0.0);
    for (std::int64_t j = 0; j < 4; ++j) {
      row += shift.at(i, j);
      column += shift.at(j, i);
    }
    EXPECT_NEAR(midpoint(row), midpoint(column), 1e-15);
  }
}

TEST(MhcMix, T13_the_streams_cross_a_stage_boundary_not_their_mean) {
  const Array<Ball> shift = cyclic_comb();
  expect_values(mixed({1, 2, 3, 4}, shift, 1, 10), {13.99999, 11.000005, 12, 12.999995}, 4e-11);
  expect_values(mixed({2.5, 2.5, 2.5, 2.5}, shift, 1, 10), std::vector<double>(4, 12.4999975), 1e-11);
}

TEST(MhcMix, T13_zero_parameters_spread_evenly) {
  const Array<Ball> x = array<Ball>({1, 4, 1}, {1, 2, 3, 4});
  const Mapping<Ball> m = mapped(x, 0.0, {});
  expect_values(mhc_aggregate(x, m.h_pre), {5.00001}, 1e-15);
  const Array<Ball> out = mhc_mix(x, array<Ball>({1, 1}, {10}), m.h_post, m.h_res, Array<Ball>());
  expect_values(out, std::vector<double>(4, 12.4999975), 1e-11);
}

TEST(MhcMix, the_branch_bias_is_weighted_like_the_branch) {
  const Array<double> x = array<double>({1, 2, 2}, {1, 2, 3, 4}),
                      h_res = array<double>({1, 2, 2}, {0.75, 0.25, 0.5, 0.5});
  const Array<double> branch = array<double>({1, 2}, {10, 20}), bias = array<double>({2}, {1, -1});
  const Array<double> out = mhc_mix(x, branch, array<double>({1, 2}, {0.5, 2}), h_res, bias);
  // out_j = post_j (f + bias) + sum_i res[i, j] x_i
  EXPECT_EQ(out.data, (std::vector<double>{0.5 * 11 + 0.75 * 1 + 0.5 * 3, 0.5 * 19 + 0.75 * 2 + 0.5 * 4,
                                           2 * 11 + 0.25 * 1 + 0.5 * 3, 2 * 19 + 0.25 * 2 + 0.5 * 4}));
}

TEST(MhcMix, more_rounding_points_make_a_wider_bound) {
  Context bf16_activations;
  bf16_activations.rounding = {.compute = 0x1p-24, .activation = 0x1p-8, .tiny = 0x1p-126};
  const ContextScope scope(bf16_activations);
  const Array<Bound> x = array<Bound>({1, 4, 1}, {1, 2, 3, 4}), pre = constants<Bound>({1, 4}, 0.5);
  EXPECT_GT(mhc_aggregate(x, pre, false)[0].e, 1.4 * mhc_aggregate(x, pre, true)[0].e);
  const Array<Bound> res = constants<Bound>({1, 4, 4}, 0.25), branch = array<Bound>({1, 1}, {10});
  EXPECT_GT(mhc_mix(x, branch, pre, res, Array<Bound>(), false)[0].e,
            1.4 * mhc_mix(x, branch, pre, res, Array<Bound>(), true)[0].e);
  EXPECT_GT(contract_mean(x, false)[0].e, 1.4 * contract_mean(x, true)[0].e);
}

TEST(MhcAggregate, is_the_weighted_sum_over_the_streams) {
  const Array<double> x = array<double>({1, 3, 2}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(mhc_aggregate(x, array<double>({1, 3}, {0.5, 0.25, 2})).data, (std::vector<double>{11.25, 14}));
}

TEST(StreamContract, T11_the_mean_is_taken_in_float32) {
  const std::vector<double> streams = {256, 1, 1, 1};
  const Array<Ball> mean = contract_mean(array<Ball>({1, 4, 1}, streams));
  EXPECT_TRUE(certainly_equal(mean[0], Ball(64.75)));
  EXPECT_EQ(rounded(bf16(), midpoint(mean[0])), 65.0);
  double running = 0.0;
  for (const double value : streams) running = rounded(bf16(), running + value);
  EXPECT_EQ(running, 256.0);
  EXPECT_EQ(rounded(bf16(), running / 4), 64.0);
}

TEST(StreamContract, the_learned_head_equals_a_hand_computation) {
  // Two streams of one channel: x = (1, 3), so mean(x^2) = 5.
  const double eps = 1e-3, rho = 1 / std::sqrt(5 + eps), scale = 1.5;
  const auto p = [&](double m, double base) { return 1 / (1 + std::exp(-(m * rho * scale + base))) + eps; };
  const double expected = p(0.5 * 1 - 0.25 * 3, 0.1) * 1 + p(0.125 * 1 + 0.75 * 3, -0.2) * 3;
  const auto learned = [&]<class T>(const T*) {
    return contract_learned(array<T>({1, 2, 1}, {1, 3}), array<T>({2, 2}, {0.5, -0.25, 0.125, 0.75}),
                            array<T>({2}, {0.1, -0.2}), array<T>({1}, {scale}), eps)[0];
  };
  const Ball ball = learned(static_cast<const Ball*>(nullptr));
  EXPECT_NEAR(midpoint(ball), expected, 1e-15);
  EXPECT_NEAR(learned(static_cast<const double*>(nullptr)), expected, 1e-15);
  Context precise;
  precise.bits = 256;
  const ContextScope scope(precise);
  EXPECT_TRUE(arb_contains(ball.data(), to_ball(learned(static_cast<const Real*>(nullptr))).data()));
}

TEST(StreamContract, the_learned_head_with_zero_parameters_is_a_sum_of_halves) {
  const Array<Ball> out = contract_learned(array<Ball>({1, 4, 1}, {1, 2, 3, 4}), constants<Ball>({4, 4}, 0.0),
                                           constants<Ball>({4}, 0.0), constants<Ball>({1}, 1.0), 1e-5);
  EXPECT_NEAR(midpoint(out[0]), 10 * 0.50001, 1e-14);
}

TEST(StreamExpand, copies_exactly) {
  const Array<Ball> x = array<Ball>({2, 2}, {1.5, -2, 0.1, 1e-300});
  const Array<Ball> y = stream_expand(x, 3);
  ASSERT_EQ(y.shape, (Shape{2, 3, 2}));
  for (std::int64_t t = 0; t < 2; ++t)
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t c = 0; c < 2; ++c) EXPECT_TRUE(certainly_equal(y.at(t, i, c), x.at(t, c)));
}

}  // namespace
}  // namespace assay::reference
