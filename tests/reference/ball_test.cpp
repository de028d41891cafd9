#include "reference/ball.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "reference/scalar.h"

namespace assay::reference {
namespace {

Context with_bits(int bits) {
  Context result;
  result.bits = bits;
  return result;
}

Ball with_radius(double value, double error) {
  Ball result(value);
  mag_set_d(arb_radref(result.data()), error);
  return result;
}

bool contains(const Ball& ball, const Real& value) { return arb_contains(ball.data(), to_ball(value).data()) != 0; }

std::vector<double> seeded(int count, double low, double high, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53);
  return values;
}

struct Function {
  const char* name;
  double low, high;
  std::function<Ball(const Ball&)> ball;
  std::function<Real(const Real&)> real;
};

const std::vector<Function>& functions() {
#define ASSAY_FUNCTION(name, low, high, f)                                                        \
  {                                                                                               \
    name, low, high, [](const Ball& x) { return f(x); }, [](const Real& x) { return Real(f(x)); } \
  }
  static const std::vector<Function> all = {ASSAY_FUNCTION("exp", -100, 100, exp),
                                            ASSAY_FUNCTION("log", 1e-9, 100, log),
                                            ASSAY_FUNCTION("sqrt", 0, 100, sqrt),
                                            ASSAY_FUNCTION("rsqrt", 1e-9, 100, rsqrt),
                                            ASSAY_FUNCTION("sigmoid", -100, 100, sigmoid),
                                            ASSAY_FUNCTION("softplus", -100, 100, softplus),
                                            ASSAY_FUNCTION("erf", -6, 6, erf),
                                            ASSAY_FUNCTION("sin", -100, 100, sin),
                                            ASSAY_FUNCTION("cos", -100, 100, cos),
                                            ASSAY_FUNCTION("abs", -1, 1, abs),
                                            ASSAY_FUNCTION("relu", -1, 1, relu)};
#undef ASSAY_FUNCTION
  return all;
}

TEST(Ball, functions_contain_the_value_at_256_bits) {
  for (const Function& f : functions()) {
    for (const double x : seeded(300, f.low, f.high, 1)) {
      const Ball ball = f.ball(Ball(x));
      const ContextScope scope(with_bits(256));
      EXPECT_TRUE(contains(ball, f.real(Real(x)))) << f.name << " of " << x;
      EXPECT_LE(radius(ball), 0x1p-120 * std::abs(midpoint(ball))) << f.name << " of " << x;
    }
  }
}

TEST(Ball, functions_of_wide_balls_contain_the_values_of_all_their_points) {
  for (const Function& f : functions()) {
    for (const double x : seeded(200, f.low, f.high, 2)) {
      const double e = std::min(std::abs(x - f.low), 0.25 * std::abs(x));
      const Ball ball = f.ball(with_radius(x, e));
      const ContextScope scope(with_bits(256));
      for (const double part : {-0.999, -0.5, 0.0, 0.7, 0.999})
        EXPECT_TRUE(contains(ball, f.real(Real(x + part * e)))) << f.name << " of " << x << " +/- " << e;
    }
  }
}

TEST(Ball, arithmetic_and_powers_contain_the_value_at_256_bits) {
  const std::vector<double> left = seeded(300, -5, 5, 3), right = seeded(300, 0.1, 5, 4);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const Ball a(left[i]), b(right[i]);
    const Ball sum = a + b, difference = a - b, product = a * b, quotient = a / b, power = pow(b, a);
    Ball chain = a;
    chain += b;
    chain -= a / b;
    chain *= b;
    chain /= a;
    const ContextScope scope(with_bits(256));
    const Real x(left[i]), y(right[i]);
    EXPECT_TRUE(contains(sum, Real(x + y)));
    EXPECT_TRUE(contains(difference, Real(x - y)));
    EXPECT_TRUE(contains(product, Real(x * y)));
    EXPECT_TRUE(contains(quotient, Real(x / y)));
    EXPECT_TRUE(contains(power, Real(pow(y, x))));
    EXPECT_TRUE(contains(chain, Real((x + y - x / y) * y / x)));
  }
}

TEST(Ball, a_dot_contains_the_sum_with_any_steps) {
  const std::vector<double> values = seeded(60, -1, 1, 5);
  std::vector<Ball> balls(values.begin(), values.end());
  const Ball found = dot(balls.data(), 3, balls.data() + 1, 2, 20);
  EXPECT_TRUE(certainly_equal(dot(balls.data(), 1, balls.data(), 1, 0), Ball(0.0))) << "an empty sum is 0";
  const ContextScope scope(with_bits(256));
  Real sum(0);
  for (std::size_t i = 0; i < 20; ++i) sum += Real(values[3 * i]) * Real(values[1 + 2 * i]);
  EXPECT_TRUE(contains(found, sum));
}

TEST(Ball, extreme_arguments_stay_finite) {
  for (const double x : {-1e5, -1e3, 1e3, 1e5}) {
    EXPECT_TRUE(arb_is_finite(sigmoid(Ball(x)).data()));
    EXPECT_TRUE(arb_is_finite(softplus(Ball(x)).data()));
    EXPECT_NEAR(midpoint(sigmoid(Ball(x))), x > 0 ? 1 : 0, 1e-15);
    EXPECT_NEAR(midpoint(softplus(Ball(x))), x > 0 ? x : 0, 1e-9);
  }
  EXPECT_TRUE(arb_is_finite(softplus(with_radius(0.0, 1.0)).data())) << "of a ball around 0";
}

TEST(Ball, a_sigmoid_does_not_widen_by_dependency) {
  const double e = 1e-20;
  EXPECT_LE(radius(sigmoid(with_radius(0.5, e))), 0.26 * e);
}

TEST(Ball, clamps_are_exact_away_from_the_limit_and_contain_both_sides_at_it) {
  EXPECT_TRUE(certainly_equal(clamp_above(Ball(12.0), 10.0), Ball(10.0)));
  EXPECT_TRUE(certainly_equal(clamp_above(with_radius(12.0, 1.0), 10.0), Ball(10.0)));
  EXPECT_TRUE(certainly_equal(clamp_above(Ball(3.0), 10.0), Ball(3.0)));
  EXPECT_TRUE(certainly_equal(clamp_above(Ball(10.0), 10.0), Ball(10.0)));
  EXPECT_TRUE(certainly_equal(clamp_below(Ball(-12.0), -10.0), Ball(-10.0)));
  EXPECT_TRUE(certainly_equal(clamp_below(Ball(3.0), -10.0), Ball(3.0)));
  EXPECT_TRUE(certainly_equal(relu(Ball(-2.0)), Ball(0.0)));
  EXPECT_TRUE(certainly_equal(relu(Ball(2.0)), Ball(2.0)));
  const Ball above = clamp_above(with_radius(10.0, 0.5), 10.0), below = clamp_below(with_radius(10.0, 0.5), 10.0);
  EXPECT_TRUE(contains(above, 9.6) && contains(above, 10.0));
  EXPECT_TRUE(contains(below, 10.0) && contains(below, 10.4));
  const Ball positive = relu(with_radius(0.1, 0.2));
  EXPECT_TRUE(contains(positive, 0.0) && contains(positive, 0.29));
}

TEST(Ball, comparisons_hold_only_if_sure) {
  EXPECT_TRUE(certainly_less(Ball(1.0), Ball(1.0) + exp(Ball(-60.0))));
  EXPECT_FALSE(certainly_less(Ball(1.0), Ball(1.0)));
  EXPECT_FALSE(certainly_less(with_radius(1.0, 0.5), with_radius(1.5, 0.5)));
  EXPECT_TRUE(overlap(with_radius(1.0, 0.5), with_radius(1.5, 0.5)));
  EXPECT_FALSE(overlap(with_radius(1.0, 0.1), with_radius(1.5, 0.1)));
  EXPECT_FALSE(certainly_equal(with_radius(1.0, 0.1), with_radius(1.0, 0.1))) << "not exact";
  EXPECT_TRUE(contains(with_radius(1.0, 0.5), 1.25));
  EXPECT_FALSE(contains(with_radius(1.0, 0.5), 1.75));
}

TEST(Ball, text_shows_certified_digits) {
  EXPECT_EQ(to_string(Ball(0.5), 20), "0.50000000000000000000");
  EXPECT_EQ(to_string(Ball(1.0) / Ball(3.0), 10), "[0.3333333333 +/- 3.34e-11]");
  EXPECT_EQ(to_string(with_radius(1.25, 0.001), 10), "[1.25 +/- 1.01e-3]");
  EXPECT_EQ(to_string(Ball(0.0), 5), "0");
}

TEST(Ball, widening_keeps_the_exact_value) {
  EXPECT_TRUE(certainly_equal(to_ball(0.1), Ball(0.1)));
  EXPECT_TRUE(certainly_equal(to_ball(Bound(0.1, 5.0)), Ball(0.1)));
  EXPECT_TRUE(certainly_equal(to_ball(Sampled(0.1)), Ball(0.1)));
  const ContextScope scope(with_bits(512));
  const Real third = Real(1) / 3;
  const Ball ball = to_ball(third);
  EXPECT_EQ(radius(ball), 0.0);
  Real back;
  arf_get_mpfr(back.backend().data(), arb_midref(ball.data()), MPFR_RNDN);
  EXPECT_EQ(back, third);
}

TEST(Ball, copies_and_moves_keep_value_and_radius) {
  Ball a = with_radius(2.5, 0.125);
  const double error = radius(a);
  EXPECT_NEAR(error, 0.125, 1e-9);
  Ball b = a;
  const Ball c = std::move(a);
  const Ball& same = b;
  b = same;  // self-assignment
  EXPECT_EQ(midpoint(b), 2.5);
  EXPECT_EQ(radius(b), error);
  EXPECT_EQ(midpoint(c), 2.5);
  EXPECT_EQ(radius(-c), error);
}

}  // namespace
}  // namespace assay::reference
