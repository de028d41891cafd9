#include "harness/decimal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace assay::harness {
namespace {

using reference::Ball;

std::string decimal(const Ball& x, int digits) { return to_decimal(x, digits).value_or("uncertain"); }

TEST(Decimal, points_are_written_exactly_and_short) {
  EXPECT_EQ(decimal(Ball(0.5), 17), "0.5");
  EXPECT_EQ(decimal(Ball(-1.25), 17), "-1.25");
  EXPECT_EQ(decimal(Ball(0.0), 17), "0");
  EXPECT_EQ(decimal(Ball(100.0), 17), "100");
  EXPECT_EQ(decimal(Ball(1e20), 30), "100000000000000000000");
  EXPECT_EQ(decimal(Ball(0x1p-4), 17), "0.0625");
  EXPECT_EQ(decimal(Ball(0x1p-20), 17), "9.5367431640625e-7");
  EXPECT_EQ(decimal(Ball(0x1p-20), 5), "9.5367e-7");
}

TEST(Decimal, other_points_are_rounded_to_nearest_once) {
  EXPECT_EQ(decimal(Ball(0.1), 17), "0.10000000000000001");
  EXPECT_EQ(decimal(Ball(0.1), 30), "0.100000000000000005551115123126");
  EXPECT_EQ(decimal(Ball(0.1), 55), "0.1000000000000000055511151231257827021181583404541015625");
  EXPECT_EQ(decimal(Ball(0.1), 60), "0.1000000000000000055511151231257827021181583404541015625");
  EXPECT_EQ(decimal(Ball(1234.5), 4), "1234");
  EXPECT_EQ(decimal(Ball(1235.5), 4), "1236");
  EXPECT_EQ(decimal(Ball(1234.5), 2), "1.2e3");
  EXPECT_EQ(decimal(Ball(7.0), 1), "7");
}

TEST(Decimal, special_points_have_words) {
  EXPECT_EQ(decimal(Ball(std::numeric_limits<double>::infinity()), 17), "inf");
  EXPECT_EQ(decimal(Ball(-std::numeric_limits<double>::infinity()), 17), "-inf");
}

TEST(Decimal, digits_of_a_ball_are_those_of_every_number_in_it) {
  const Ball third = Ball(1.0) / Ball(3.0);  // 128 bits: 38 digits
  EXPECT_EQ(decimal(third, 17), "0.33333333333333333");
  EXPECT_EQ(decimal(third, 30), "0.333333333333333333333333333333");
  EXPECT_EQ(decimal(third, 60), "uncertain");
  EXPECT_EQ(decimal(sqrt(Ball(2.0)), 20), "1.4142135623730950488");
}

TEST(Decimal, a_ball_keeps_the_zeros_that_are_certain) {
  const Ball one = Ball(3.0) * (Ball(1.0) / Ball(3.0));
  ASSERT_GT(radius(one), 0.0);
  EXPECT_EQ(decimal(one, 5), "1.0000");
}

TEST(Decimal, a_ball_around_zero_has_no_digits) {
  const Ball zero = Ball(3.0) * (Ball(1.0) / Ball(3.0)) - Ball(1.0);
  EXPECT_EQ(decimal(zero, 17), "uncertain");
}

TEST(Decimal, doubles_read_back_from_17_digits) {
  for (const double value : {0.1, 1e22, 5e-324, 1.7976931348623157e308, 123456.789, 1e-5, 9.999999999999999e22}) {
    EXPECT_EQ(std::strtod(decimal(Ball(value), 17).c_str(), nullptr), value);
  }
}

}  // namespace
}  // namespace assay::harness
