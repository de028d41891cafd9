#include "reference/ops/ffn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace assay::reference {
namespace {

template <class T>
T one_swiglu(double gate, double up, std::optional<double> limit) {
  return swiglu(Array<T>({1}, {T(gate)}), Array<T>({1}, {T(up)}), limit)[0];
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

TEST(Swiglu, T75_clamps_gate_above_and_up_on_both_sides_before_silu) {
  Context replacement;
  replacement.bits = 192;
  const ContextScope scope(replacement);
  EXPECT_NEAR(midpoint(one_swiglu<Ball>(12, 3, 10.0)), 29.998638063939, 5e-13);
  EXPECT_NEAR(midpoint(one_swiglu<Ball>(-12, 3, 10.0)), -2.2119028567973e-4, 5e-18);
  EXPECT_NEAR(midpoint(one_swiglu<Ball>(5, -15, 10.0)), -49.665357453786, 5e-13);
  EXPECT_NEAR(midpoint(one_swiglu<Ball>(12, -15, 10.0)), -99.99546021313, 5e-12);
  EXPECT_LT(radius(one_swiglu<Ball>(12, 3, 10.0)), 1e-50);
}

TEST(Swiglu, T75_wrong_clamps_give_the_printed_wrong_values) {
  const auto clamp = [](double x) { return std::clamp(x, -10.0, 10.0); };
  EXPECT_NEAR(silu(clamp(-12)) * 3, -1.36193606e-3, 5e-12);  // gate clamped on both sides
  EXPECT_NEAR(midpoint(one_swiglu<Ball>(5, -15, std::nullopt)), -74.498, 5e-4);
  EXPECT_NEAR(midpoint(one_swiglu<Ball>(12, -15, std::nullopt)), -179.9989, 5e-5);
  EXPECT_NEAR(std::min(silu(12), 10.0) * clamp(-15), -100.0, 1e-12);  // clamp after silu
}

TEST(Swiglu, all_scalars_agree) {
  for (const double gate : {-30.0, -12.0, -0.5, 0.0, 3.0, 10.0, 12.0})
    for (const double up : {-15.0, 0.25, 11.0}) {
      const Ball ball = one_swiglu<Ball>(gate, up, 10.0);
      Context wide;
      wide.bits = 256;
      const ContextScope scope(wide);
      const Real real = one_swiglu<Real>(gate, up, 10.0);
      EXPECT_TRUE(arb_contains(ball.data(), to_ball(real).data()));
      EXPECT_NEAR(one_swiglu<double>(gate, up, 10.0), midpoint(ball), 1e-14 * std::abs(midpoint(ball)));
      const Bound bound = one_swiglu<Bound>(gate, up, 10.0);
      EXPECT_LE(std::abs(one_swiglu<double>(gate, up, 10.0) - bound.v), bound.e);
    }
}

TEST(Swiglu, bound_has_two_rounding_points) {
  Context replacement;
  replacement.rounding = {0.0, 0x1p-9, 0.0};
  const ContextScope scope(replacement);
  const Bound y = one_swiglu<Bound>(3, 2, 10.0);
  EXPECT_NEAR(y.e / y.v, 2 * 0x1p-9, 1e-5);
}

TEST(ResidualAdd, adds_elementwise) {
  EXPECT_EQ(residual_add(Array<double>({2}, {1, 2}), Array<double>({2}, {10, 20})).data, (std::vector<double>{11, 22}));
}

}  // namespace
}  // namespace assay::reference
