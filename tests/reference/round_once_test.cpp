#include "reference/round_once.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "reference/decide.h"

namespace assay::reference {
namespace {

/// 1 + 2^-8 is the middle of two bf16 numbers; 2^-100 more lies above it but is not a double.
template <class T>
T just_above_the_middle() {
  return T(1.0 + 0x1p-8) + T(0x1p-100);
}

Context with_bits(int bits) {
  Context result = context();
  result.bits = bits;
  return result;
}

TEST(RoundOnce, a_value_just_above_the_middle_is_not_rounded_twice) {
  const ContextScope scope(with_bits(256));
  EXPECT_EQ(rounded(bf16(), midpoint(just_above_the_middle<Ball>())), 1.0) << "by way of a double: to even";
  EXPECT_EQ(round_once(bf16(), just_above_the_middle<Real>(), Overflow::kSpecial), 1.0 + 0x1p-7);
  EXPECT_EQ(round_once(bf16(), just_above_the_middle<Ball>(), Overflow::kSpecial), 1.0 + 0x1p-7);
  EXPECT_EQ(round_once(bf16(), Real(-just_above_the_middle<Real>()), Overflow::kSpecial), -1.0 - 0x1p-7);
  EXPECT_EQ(round_once(bf16(), -just_above_the_middle<Ball>(), Overflow::kSpecial), -1.0 - 0x1p-7);
}

TEST(RoundOnce, the_middle_itself_goes_to_even_in_every_scalar) {
  EXPECT_EQ(round_once(bf16(), 1.0 + 0x1p-8, Overflow::kSpecial), 1.0);
  EXPECT_EQ(round_once(bf16(), Real(1.0 + 0x1p-8), Overflow::kSpecial), 1.0);
  EXPECT_EQ(round_once(bf16(), Ball(1.0 + 0x1p-8), Overflow::kSpecial), 1.0);
  EXPECT_EQ(round_once(bf16(), Bound(1.0 + 0x1p-8), Overflow::kSpecial), 1.0);
}

TEST(RoundOnce, scalars_agree_with_the_rounding_of_doubles) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> mantissa(-2.0, 2.0);
  std::uniform_int_distribution<int> exponent(-160, 130);
  for (const Format* format : {&bf16(), &fp16(), &fp32(), &e4m3(), &e5m2()})
    for (int i = 0; i < 2000; ++i) {
      const double x = std::ldexp(mantissa(random), exponent(random));
      const double expected = rounded(*format, x, Overflow::kSaturate);
      ASSERT_EQ(round_once(*format, Real(x), Overflow::kSaturate), expected) << format->name << " " << x;
      ASSERT_EQ(round_once(*format, Ball(x), Overflow::kSaturate), expected) << format->name << " " << x;
      ASSERT_EQ(round_once(*format, Bound(x), Overflow::kSaturate), expected) << format->name << " " << x;
    }
}

TEST(RoundOnce, values_outside_the_range_of_doubles_keep_their_sign_and_saturate) {
  const Real huge = ldexp(Real(-1.0), 5000), tiny = ldexp(Real(-1.0), -5000);
  EXPECT_EQ(round_once(e4m3(), huge, Overflow::kSaturate), -448.0);
  EXPECT_EQ(round_once(bf16(), huge, Overflow::kSpecial), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(round_once(e4m3(), to_ball(huge), Overflow::kSaturate), -448.0);
  EXPECT_EQ(encode(bf16(), round_once(bf16(), tiny, Overflow::kSpecial), Overflow::kSpecial), 0x8000U);
  EXPECT_EQ(encode(bf16(), round_once(bf16(), to_ball(tiny), Overflow::kSpecial), Overflow::kSpecial), 0x8000U);
  EXPECT_TRUE(std::isnan(round_once(bf16(), std::nan(""), Overflow::kSpecial)));
  EXPECT_TRUE(std::isnan(round_once(bf16(), Ball(std::nan("")), Overflow::kSpecial)));
}

TEST(RoundOnce, a_ball_across_a_boundary_asks_for_more_precision) {
  Ball wide(1.0 + 0x1p-8);
  mag_set_d(arb_radref(wide.data()), 0x1p-40);
  EXPECT_THROW(round_once(bf16(), wide, Overflow::kSpecial), Undecided);
  EXPECT_EQ(round_once(bf16(), Ball(wide + Ball(0x1p-30)), Overflow::kSpecial), 1.0 + 0x1p-7);

  Context last = context();
  last.ties_are_final = true;
  const ContextScope scope(last);
  const Ball both = rounded_to(bf16(), wide, Overflow::kSpecial);
  EXPECT_TRUE(contains(both, 1.0));
  EXPECT_TRUE(contains(both, 1.0 + 0x1p-7));
}

TEST(RoundOnce, a_bound_grows_only_by_the_boundaries_it_can_cross) {
  const Bound certain = rounded_to(bf16(), Bound(1.001, 1e-4), Overflow::kSpecial);
  EXPECT_EQ(certain.v, 1.0);
  EXPECT_EQ(certain.e, 0.0) << "every value of the interval rounds to 1";
  const Bound crossing = rounded_to(bf16(), Bound(1.0 + 0x1p-8, 1e-9), Overflow::kSpecial);
  EXPECT_EQ(crossing.v, 1.0);
  EXPECT_EQ(crossing.e, 0x1p-7);
  EXPECT_EQ(rounded_to(bf16(), Bound(1.0, std::numeric_limits<double>::infinity()), Overflow::kSpecial).e,
            std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace assay::reference
