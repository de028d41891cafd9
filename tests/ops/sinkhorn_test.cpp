// Sinkhorn: known answers, the variants that must not be mixed up with it, and the two forms of the same iteration.
// Expected numbers: shared/cases/public_reports.md part 3 (T..), shared/spec/megatron.md 1.4 and 1.9.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "reference/ops/mhc.h"

namespace assay::reference {
namespace {

constexpr double kEps = 1e-6;
const std::vector<double> kT06 = {2, 0, -1, 0, 0, 0, 1, -2, 1, -1, 0, 0, -1, 3, 0, 1};

Context with_bits(int bits) {
  Context result;
  result.bits = bits;
  return result;
}

template <class T>
Array<T> square(const std::vector<double>& values) {
  const auto n = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(values.size()))));
  return Array<T>({n, n}, std::vector<T>(values.begin(), values.end()));
}

std::vector<double> filled(std::int64_t n, double diagonal, double elsewhere) {
  std::vector<double> m(static_cast<std::size_t>(n * n), elsewhere);
  for (std::int64_t i = 0; i < n; ++i) m[static_cast<std::size_t>(i * n + i)] = diagonal;
  return m;
}

/// How a variant treats its sums and its first step.
struct Form {
  enum class First { kSoftmaxPlusEps, kSoftmax, kExpShift } first = First::kSoftmaxPlusEps;
  bool clamp = false;  ///< divide by max(sum, eps), not by sum + eps
  bool rows_last = false;
};

/// Divides every line by (sum + eps), in the matrix itself.
template <class T>
void normalise(Array<T>& m, bool rows, double eps, bool clamp) {
  const std::int64_t n = m.dim(0);
  for (std::int64_t a = 0; a < n; ++a) {
    const auto at = [&](std::int64_t b) -> T& { return rows ? m.at(a, b) : m.at(b, a); };
    T sum(0.0);
    for (std::int64_t b = 0; b < n; ++b) sum = sum + at(b);
    const T divisor = clamp ? clamp_below(sum, eps) : T(sum + constant<T>(eps));
    for (std::int64_t b = 0; b < n; ++b) at(b) = at(b) / divisor;
  }
}

/// The plain form: the matrix divided by its own sums, step by step.
template <class T>
Array<T> plain(const Array<T>& logits, std::int64_t iterations, double eps, Form form = {}) {
  const std::int64_t n = logits.dim(0);
  Array<T> m(logits.shape);
  for (std::int64_t i = 0; i < n; ++i) {
    double shift = midpoint(logits.at(i, 0));
    for (std::int64_t j = 1; j < n; ++j) shift = std::max(shift, midpoint(logits.at(i, j)));
    for (std::int64_t j = 0; j < n; ++j) m.at(i, j) = exp(T(logits.at(i, j) - T(shift)));
  }
  std::int64_t whole_rounds = iterations;
  if (form.first != Form::First::kExpShift) {
    normalise(m, true, 0.0, false);
    if (form.first == Form::First::kSoftmaxPlusEps)
      for (T& value : m.data) value = value + constant<T>(eps);
    normalise(m, false, eps, form.clamp);
    --whole_rounds;
  }
  for (std::int64_t step = 0; step < whole_rounds; ++step) {
    normalise(m, true, eps, form.clamp);
    normalise(m, false, eps, form.clamp);
  }
  if (form.rows_last) normalise(m, true, eps, form.clamp);
  return m;
}

template <class T>
double distance(const Array<T>& a, const Array<T>& b) {
  double widest = 0.0;
  for (std::int64_t i = 0; i < a.size(); ++i) widest = std::max(widest, std::abs(midpoint(T(a[i] - b[i]))));
  return widest;
}

void expect_row(const Array<Ball>& m, std::int64_t row, const std::vector<double>& expected, double tolerance) {
  for (std::size_t j = 0; j < expected.size(); ++j)
    EXPECT_NEAR(midpoint(m.at(row, static_cast<std::int64_t>(j))), expected[j], tolerance) << row << ", " << j;
}

TEST(Sinkhorn, T02_the_first_step_is_a_softmax_plus_eps) {
  const Array<Ball> logits = square<Ball>(filled(4, 0, -40));
  const Array<Ball> m = sinkhorn(logits, 20, kEps).h_res;
  EXPECT_NEAR(midpoint(m.at(0, 1)), 9.99995e-7, 5e-13);
  EXPECT_NEAR(midpoint(m.at(0, 0)), 0.999996, 5e-7);
  // The "corrected" kernel has no eps after the softmax.
  const Array<Ball> wrong = plain(logits, 20, kEps, {.first = Form::First::kSoftmax});
  EXPECT_NEAR(midpoint(wrong.at(0, 1)), 4.248e-18, 5e-22);
  EXPECT_NEAR(midpoint(wrong.at(0, 0)), 0.999999, 5e-7);
}

TEST(Sinkhorn, T02_a_large_residual_amplifies_the_first_step) {
  const Array<Ball> residual({1, 4, 1}, {0, 1e6, 0, 0}), none({1, 1}, {0}), h_post({1, 4}, {0, 0, 0, 0});
  const Array<Ball> logits = square<Ball>(filled(4, 0, -40));
  const auto first_out = [&](const Array<Ball>& m) {
    return midpoint(mhc_mix(residual, none, h_post, m.reshaped({1, 4, 4}), Array<Ball>())[0]);
  };
  EXPECT_NEAR(first_out(sinkhorn(logits, 20, kEps).h_res), 0.999995, 5e-7);
  EXPECT_LT(first_out(plain(logits, 20, kEps, {.first = Form::First::kSoftmax})), 1e-11);
}

TEST(Sinkhorn, T04_an_eps_of_0_02_shows_in_every_sum) {
  for (const std::vector<double>& logits : {filled(4, 0, 0), filled(4, 1, -0.5), kT06}) {
    // The sums approach 0.98 with the iterations as those of the real eps approach 1 - 1e-6.
    const Sinkhorn<Ball> masked = sinkhorn(square<Ball>(logits), 200, 0.02);
    const Sinkhorn<Ball> right = sinkhorn(square<Ball>(logits), 200, kEps);
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(midpoint(masked.row_sums[i]), 0.98, 1e-12);
      EXPECT_NEAR(midpoint(masked.column_sums[i]), 0.98, 1e-12);
      EXPECT_NEAR(midpoint(right.column_sums[i]), 1 - 1e-6, 1e-11);
      EXPECT_GT(std::abs(midpoint(masked.column_sums[i]) - (1 - 1e-6)), 1e-2) << "far outside any f32 limit";
    }
  }
}

TEST(Sinkhorn, T06_twenty_steps_of_the_public_example) {
  const Sinkhorn<Ball> s = sinkhorn(square<Ball>(kT06), 20, kEps);
  expect_row(s.h_res, 0, {0.56417961388221, 0.10129276547657, 0.057029175372709, 0.2774974451645}, 5e-15);
  expect_row(s.h_res, 3, {0.0094519839248828, 0.6845721530597, 0.05216168626503, 0.25381317692828}, 5e-15);
  for (int j = 0; j < 4; ++j) EXPECT_NEAR(midpoint(s.column_sums[j]), 1 - 1.0e-6, 5e-15);
}

TEST(Sinkhorn, T06_the_distances_of_the_variants) {
  const Array<Ball> logits = square<Ball>(kT06);
  const Array<Ball> right = sinkhorn(logits, 20, kEps).h_res;
  const Form exp_shift{.first = Form::First::kExpShift}, clamped{.first = Form::First::kExpShift, .clamp = true};
  EXPECT_NEAR(distance(plain(logits, 20, kEps, clamped), right), 2.93e-6, 5e-9);
  EXPECT_NEAR(distance(plain(logits, 20, kEps, exp_shift), right), 2.27e-6, 5e-9);
  EXPECT_NEAR(distance(sinkhorn(logits, 20, 1e-8).h_res, right), 2.90e-6, 5e-9);
  EXPECT_NEAR(distance(sinkhorn(logits, 19, kEps).h_res, right), 1.3e-10, 5e-12);
}

TEST(Sinkhorn, T07_one_step_ends_on_the_columns) {
  const Array<Ball> logits = square<Ball>(kT06);
  const Sinkhorn<Ball> s = sinkhorn(logits, 1, kEps);
  const std::vector<double> rows = {0.8634554917, 1.039772853, 1.095584096, 1.0011826};
  const std::vector<double> printed = {5e-11, 5e-10, 5e-10, 5e-8};
  Array<Ball> wrong = plain(logits, 1, kEps, {.rows_last = true});
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto k = static_cast<std::size_t>(i);
    EXPECT_NEAR(midpoint(s.row_sums[i]), rows[k], printed[k]);
    EXPECT_NEAR(midpoint(s.column_sums[i]), 1, 2.3e-6);
    Ball sum(0.0);
    for (std::int64_t j = 0; j < 4; ++j) sum += wrong.at(i, j);
    EXPECT_NEAR(midpoint(sum), 1, 2e-6) << "rows last";
  }
}

TEST(Sinkhorn, T07_each_step_count_gives_its_own_matrix) {
  const Array<Ball> logits = square<Ball>(kT06);
  for (const std::int64_t iterations : {1, 2, 3, 20}) {
    const Array<Ball> m = sinkhorn(logits, iterations, kEps).h_res;
    EXPECT_LT(distance(m, plain(logits, iterations, kEps)), 1e-30) << iterations;
    EXPECT_GT(distance(m, sinkhorn(logits, iterations + 1, kEps).h_res), 1e-11) << iterations;
  }
}

TEST(Sinkhorn, known_answers_of_two_streams) {
  const Array<Ball> logits = square<Ball>({0.5, -1, 2, 0.25});
  const Array<Ball> twenty = sinkhorn(logits, 20, kEps).h_res, one = sinkhorn(logits, 1, kEps).h_res;
  expect_row(twenty, 0, {0.46879032, 0.53120868}, 5e-9);
  expect_row(twenty, 1, {0.53120868, 0.46879032}, 5e-9);
  expect_row(one, 0, {0.48970389, 0.55201188}, 5e-9);
  expect_row(one, 1, {0.51029551, 0.44798510}, 5e-9);
}

TEST(Sinkhorn, known_answers_of_four_streams_and_of_the_older_variant) {
  std::vector<double> values;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) values.push_back(0.1 * (4 * i + j) * ((i + j) % 2 ? -1 : 1));
  const Array<Ball> logits = square<Ball>(values);
  const Array<Ball> m = sinkhorn(logits, 20, kEps).h_res;
  expect_row(m, 0, {0.318719768, 0.193314096, 0.346917980, 0.141047157}, 6e-10);
  expect_row(m, 2, {0.434729073, 0.053236172, 0.473191131, 0.038842625}, 6e-10);
  // Until 2026-08-22: exp(L - max), then every sum clamped to at least eps.
  const Array<Ball> older = plain(logits, 20, kEps, {.first = Form::First::kExpShift, .clamp = true});
  expect_row(older, 0, {0.318720553, 0.193313788, 0.346918943, 0.141046717}, 5e-10);
  EXPECT_GT(distance(m, older), 5e-7);
}

TEST(Sinkhorn, the_scaling_form_is_the_plain_form_to_the_certified_radius) {
  std::mt19937_64 random(7);
  for (const std::int64_t n : {1, 2, 3, 4, 8}) {
    for (const std::int64_t iterations : {1, 2, 7, 20}) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < n * n; ++i) values.push_back(static_cast<double>(random() >> 11) * 0x1p-50 - 4.0);
      Array<Ball> wide;
      {
        const ContextScope scope(with_bits(512));
        wide = plain(square<Ball>(values), iterations, kEps);
      }
      const Array<Ball> m = sinkhorn(square<Ball>(values), iterations, kEps).h_res;
      for (std::int64_t i = 0; i < m.size(); ++i) {
        ASSERT_LT(radius(wide[i]), 1e-80) << "the comparison itself must be sharp";
        EXPECT_TRUE(arb_contains(m[i].data(), wide[i].data())) << n << " streams, " << iterations << " iterations";
      }
    }
  }
}

TEST(Sinkhorn, twenty_steps_at_128_bits_stay_certified_to_2_to_minus_110) {
  for (const std::vector<double>& logits : {kT06, filled(4, 0, -40), filled(8, 3, -2)}) {
    for (const Ball& value : sinkhorn(square<Ball>(logits), 20, kEps).h_res.data)
      EXPECT_LT(radius(value), 0x1p-110 * std::abs(midpoint(value)));
  }
}

TEST(Sinkhorn, balls_contain_the_value_at_256_bits) {
  const Array<Ball> balls = sinkhorn(square<Ball>(kT06), 20, kEps).h_res;
  const ContextScope scope(with_bits(256));
  const Array<Real> reals = sinkhorn(square<Real>(kT06), 20, kEps).h_res;
  for (std::int64_t i = 0; i < balls.size(); ++i)
    EXPECT_TRUE(arb_contains(balls[i].data(), to_ball(reals[i]).data())) << i;
}

TEST(Sinkhorn, huge_logits_do_not_overflow) {
  // A column whose logit wins everywhere keeps finite shares of the other rows: eps holds the divisors.
  const std::vector<double> huge = {1e4, -1e4, 3e38, 0, 0, 0, 0, 0, -3e38, 1, 2, 3, 88, 89, 709, 710};
  const Array<Ball> balls = sinkhorn(square<Ball>(huge), 20, kEps).h_res;
  const Array<double> fast = sinkhorn(square<double>(huge), 20, kEps).h_res;
  for (std::int64_t i = 0; i < balls.size(); ++i) {
    ASSERT_TRUE(std::isfinite(fast[i])) << i;
    ASSERT_TRUE(arb_is_finite(balls[i].data())) << i;
    EXPECT_NEAR(fast[i], midpoint(balls[i]), 1e-12);
    EXPECT_LT(radius(balls[i]), 1e-25);
  }
}

TEST(Sinkhorn, equal_logits_give_equal_shares_and_one_stream_gives_itself) {
  for (const std::int64_t n : {2, 3, 4, 8})
    for (const Ball& value : sinkhorn(square<Ball>(filled(n, 5, 5)), 20, kEps).h_res.data)
      EXPECT_NEAR(midpoint(value), (1 - 1e-6) / static_cast<double>(n), 2e-12);
  // n = 1: 1 + eps, then m / (m + eps) at every step, 39 of them.
  const double one = midpoint(sinkhorn(square<Ball>({123.0}), 20, kEps).h_res[0]);
  double m = 1 + kEps;
  for (int step = 0; step < 39; ++step) m /= m + kEps;
  EXPECT_NEAR(one, m, 1e-14);
}

TEST(Sinkhorn, a_batch_is_its_matrices) {
  std::vector<double> both = kT06;
  const std::vector<double> other = filled(4, 0, -40);
  both.insert(both.end(), other.begin(), other.end());
  const Sinkhorn<double> batch =
      sinkhorn(Array<double>({2, 4, 4}, std::vector<double>(both.begin(), both.end())), 3, kEps);
  EXPECT_EQ(batch.row_sums.shape, (Shape{2, 4}));
  const Array<double> first = sinkhorn(square<double>(kT06), 3, kEps).h_res;
  const Array<double> second = sinkhorn(square<double>(other), 3, kEps).h_res;
  EXPECT_TRUE(std::equal(first.data.begin(), first.data.end(), batch.h_res.data.begin()));
  EXPECT_TRUE(std::equal(second.data.begin(), second.data.end(), batch.h_res.data.begin() + 16));
}

TEST(Sinkhorn, no_iterations_are_refused) {
  for (const std::int64_t iterations : {0, -1}) {
    try {
      sinkhorn(square<double>(kT06), iterations, kEps);
      FAIL() << "accepted " << iterations;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("iterations: " + std::to_string(iterations)), std::string::npos);
    }
  }
}

TEST(Sinkhorn, a_float32_implementation_of_the_plain_form_stays_within_the_bound) {
  Context f32;
  f32.rounding.compute = f32.rounding.activation = 0x1p-24;
  f32.rounding.tiny = 0x1p-126;
  const ContextScope scope(f32);
  std::mt19937_64 random(11);
  double largest_share = 0.0;
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<double> values;
    for (int i = 0; i < 16; ++i) values.push_back(static_cast<double>(static_cast<float>(random() >> 11) * 0x1p-50F));
    const Array<Bound> bound = sinkhorn(square<Bound>(values), 20, kEps).h_res;
    const Array<Sampled> sampled = sinkhorn(square<Sampled>(values), 20, kEps).h_res;
    std::vector<float> m(16);
    for (std::size_t i = 0; i < 4; ++i) {
      float top = -std::numeric_limits<float>::infinity(), sum = 0;
      for (std::size_t j = 0; j < 4; ++j) top = std::max(top, static_cast<float>(values[4 * i + j]));
      for (std::size_t j = 0; j < 4; ++j) sum += m[4 * i + j] = std::exp(static_cast<float>(values[4 * i + j]) - top);
      for (std::size_t j = 0; j < 4; ++j) m[4 * i + j] = m[4 * i + j] / sum + 1e-6F;
    }
    const auto step = [&](std::size_t line, std::size_t along) {
      for (std::size_t a = 0; a < 4; ++a) {
        float sum = 0;
        for (std::size_t b = 0; b < 4; ++b) sum += m[a * line + b * along];
        for (std::size_t b = 0; b < 4; ++b) m[a * line + b * along] /= sum + 1e-6F;
      }
    };
    step(1, 4);
    for (int i = 1; i < 20; ++i) {
      step(4, 1);
      step(1, 4);
    }
    for (std::int64_t i = 0; i < 16; ++i) {
      const double error = std::abs(static_cast<double>(m[static_cast<std::size_t>(i)]) - bound[i].v);
      EXPECT_LE(error, bound[i].e);
      EXPECT_LE(std::abs(sampled[i].v - bound[i].v), bound[i].e);
      largest_share = std::max(largest_share, error / bound[i].e);
    }
  }
  EXPECT_GT(largest_share, 1e-3);
}

}  // namespace
}  // namespace assay::reference
