// Gradients of the clamped SwiGLU and of the residual. Expected numbers: shared/cases/public_reports.md part 3 (T..).
#include "reference/ops/ffn_backward.h"

#include "reference/ops/ffn.h"
#include "tests/ops/central_difference_mhc.h"

namespace assay::reference {
namespace {

using namespace proof;  // NOLINT: the words of this file

constexpr double kLimit = 10.0;

template <class T>
SwigluGradient<T> at(const T& gate, const T& up, std::optional<double> limit = kLimit) {
  return swiglu_backward(Array<T>({1}, {gate}), Array<T>({1}, {up}), limit, Array<T>({1}, {T(1.0)}));
}

double silu_slope(double x) { return 1 / (1 + std::exp(-x)) * (1 + x / (1 + std::exp(x))); }

TEST(SwigluBackward, T75_gradients) {
  const ContextScope scope(with_bits(192));
  EXPECT_EQ(midpoint(at<Ball>(12, 3).d_gate[0]), 0.0);
  EXPECT_EQ(midpoint(at<Ball>(5, -15).d_up[0]), 0.0);
  EXPECT_NEAR(midpoint(at<Ball>(-12, 3).d_gate[0]), -2.02756403e-4, 5e-13);
  EXPECT_LT(radius(at<Ball>(-12, 3).d_gate[0]), 1e-50);
}

TEST(SwigluBackward, T75_gradient_passes_at_equality) {
  const ContextScope scope(with_bits(192));
  const SwigluGradient<Ball> both = at<Ball>(10, 10);
  EXPECT_NEAR(midpoint(both.d_gate[0]), 10.0040856021, 5e-11);
  EXPECT_NEAR(midpoint(both.d_up[0]), 9.99954602131, 5e-12);
  EXPECT_LT(radius(both.d_gate[0]), 1e-50);
  EXPECT_GT(at<double>(10, -10).d_up[0], 9.99);
  const double above = std::nextafter(10.0, 11.0);
  EXPECT_EQ(at<double>(above, 10).d_gate[0], 0.0);
  EXPECT_EQ(at<double>(10, above).d_up[0], 0.0);
  EXPECT_EQ(at<double>(10, -above).d_up[0], 0.0);
  // Real beyond double precision: above the limit is above.
  EXPECT_EQ(at<Real>(Real(10) + ldexp(Real(1), -150), Real(1)).d_gate[0], 0);
}

TEST(SwigluBackward, T75_a_gate_clamped_on_both_sides_would_lose_the_gradient) {
  const double gate = -12.0, up = 3.0;
  const bool symmetric_mask = gate >= -kLimit && gate <= kLimit;
  EXPECT_EQ(up * silu_slope(gate) * symmetric_mask, 0.0);
  EXPECT_NEAR(up * silu_slope(gate), at<double>(gate, up).d_gate[0], 1e-17);
}

TEST(SwigluBackward, equals_central_differences_with_clamps_active_on_both_sides) {
  Arrays<double> inputs{seeded({2, 5}, 1), seeded({2, 5}, 2)};
  inputs[0].data[0] = 12.0;
  inputs[0].data[1] = -14.0;
  inputs[1].data[2] = 11.0;
  inputs[1].data[3] = -15.0;
  for (const std::optional<double> limit : {std::optional<double>(kLimit), std::optional<double>(), std::optional(0.5)})
    prove(
        inputs, [&]<class T>(const Arrays<T>& in) { return Arrays<T>{swiglu(in[0], in[1], limit)}; },
        [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
          SwigluGradient<T> g = swiglu_backward(in[0], in[1], limit, d[0]);
          return Arrays<T>{g.d_gate, g.d_up};
        });
}

TEST(SwigluBackward, at_the_limit_it_is_the_inner_one_sided_difference) {
  const ContextScope scope(with_bits(256));
  const Real step = ldexp(Real(1), -100);
  const auto value = [](const Real& gate, const Real& up) {
    return swiglu(Array<Real>({1}, {gate}), Array<Real>({1}, {up}), kLimit)[0];
  };
  const Real ten(10);
  EXPECT_LT(distance((value(ten, ten) - value(ten - step, ten)) / step, at<Real>(ten, ten).d_gate[0]), 1e-25);
  EXPECT_LT(distance((value(ten, ten) - value(ten, ten - step)) / step, at<Real>(ten, ten).d_up[0]), 1e-25);
  EXPECT_LT(distance((value(ten, -ten + step) - value(ten, -ten)) / step, at<Real>(ten, -ten).d_up[0]), 1e-25);
}

TEST(SwigluBackward, a_straddling_operand_takes_both_cases) {
  Ball gate(10.0);
  mag_set_d(arb_radref(gate.data()), 0x1p-60);
  const SwigluGradient<Ball> ball = at<Ball>(gate, Ball(3));
  EXPECT_TRUE(contains(ball.d_gate[0], 0.0));
  EXPECT_TRUE(contains(ball.d_gate[0], 3.0));
  const Bound inside = at<Bound>(Bound(9.999, 0.01), Bound(3)).d_gate[0];
  EXPECT_NEAR(inside.v, 3.0, 0.01);
  EXPECT_GE(inside.e, inside.v);
  const Bound outside = at<Bound>(Bound(10.001, 0.01), Bound(3)).d_gate[0];
  EXPECT_EQ(outside.v, 0.0);
  EXPECT_GE(outside.e, 3.0);
  const Bound lower = at<Bound>(Bound(1), Bound(-10.001, 0.01)).d_up[0];
  EXPECT_EQ(lower.v, 0.0);
  EXPECT_GE(lower.e, 0.73);
}

TEST(ResidualAddBackward, hands_the_cotangent_to_both) {
  const Array<double> dy({1, 2}, {3, -4});
  const ResidualAddGradient<double> g = residual_add_backward({1, 2}, dy);
  EXPECT_EQ(g.d_a.data, dy.data);
  EXPECT_EQ(g.d_b.data, dy.data);
  EXPECT_EQ(residual_add_backward({1, 2}, Array<double>()).d_a.data, (std::vector<double>{0, 0}));
}

TEST(FfnBackward, calls) {
  OpTable<double> table;
  add_ffn_backward_ops(table);
  const Array<double> gate = seeded({2, 3}, 1, 10), up = seeded({2, 3}, 2, 10), dy = seeded({2, 3}, 3);
  const OpSpec swiglu_spec = backward_spec("swiglu", {"y"}), add_spec = backward_spec("residual_add", {"y"});
  const OpCall full =
      make_call(swiglu_spec, {{"limit", 10.0}}, {{"gate", tensor(gate)}, {"up", tensor(up)}, {"d_y", tensor(dy)}});
  const SwigluGradient<double> expected = swiglu_backward(gate, up, 10.0, dy);
  Results<double> found = table.at("swiglu.backward")(Call<double>(full));
  EXPECT_EQ(real_result(found, "d_gate").data, expected.d_gate.data);
  EXPECT_EQ(real_result(found, "d_up").data, expected.d_up.data);
  const OpCall sum = make_call(add_spec, {}, {{"a", tensor(gate)}, {"b", tensor(up)}});
  found = table.at("residual_add.backward")(Call<double>(sum));
  EXPECT_EQ(real_result(found, "d_b").data, std::vector<double>(6, 0.0));
}

}  // namespace
}  // namespace assay::reference
