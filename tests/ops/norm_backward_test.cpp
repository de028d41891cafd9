// Gradients of the norms. Numbers: shared/cases/public_reports.md part 3.
#include "reference/ops/norm_backward.h"

#include "reference/ops/norm.h"
#include "tests/ops/central_difference_kda.h"

namespace assay::reference {
namespace {

using proof::Arrays;
using proof::expect_gradients;
using proof::Numbers;

/// Rows of ordinary size, a tiny one and one far from zero.
Array<double> rows(Numbers& numbers) {
  Array<double> x = numbers.array({2, 2, 5});
  for (int i = 5; i < 10; ++i) x[i] *= 0x1p-10;
  for (int i = 10; i < 15; ++i) x[i] += 3;
  return x;
}

TEST(RmsNormBackward, equals_central_differences) {
  Numbers numbers;
  const auto forward = [](const auto& x) { return std::vector{rms_norm(x[0], x[1], 1e-5)}; };
  const auto backward = [](const auto& x, const auto& d) {
    auto gradients = rms_norm_backward(x[0], x[1], 1e-5, d[0]);
    return std::vector{gradients.d_x, gradients.d_weight};
  };
  expect_gradients("weight", forward, backward, {rows(numbers), numbers.array({5})});
  expect_gradients("no weight", forward, backward, {rows(numbers), {}});
}

TEST(LayerNormBackward, equals_central_differences) {
  Numbers numbers;
  const auto forward = [](const auto& x) { return std::vector{layer_norm(x[0], x[1], x[2], 1e-6)}; };
  const auto backward = [](const auto& x, const auto& d) {
    auto gradients = layer_norm_backward(x[0], x[1], x[2], 1e-6, d[0]);
    return std::vector{gradients.d_x, gradients.d_weight, gradients.d_bias};
  };
  expect_gradients("bias", forward, backward, {rows(numbers), numbers.array({5}), numbers.array({5})});
  expect_gradients("no bias", forward, backward, {rows(numbers), numbers.array({5}), {}});
}

TEST(GatedRmsNormBackward, equals_central_differences) {
  Numbers numbers;
  const auto forward = [](const auto& x) { return std::vector{gated_rms_norm(x[0], x[1], x[2], 1e-5)}; };
  const auto backward = [](const auto& x, const auto& d) {
    auto gradients = gated_rms_norm_backward(x[0], x[1], x[2], 1e-5, d[0]);
    return std::vector{gradients.d_o, gradients.d_z, gradients.d_weight};
  };
  Array<double> z = numbers.array({2, 2, 5});
  for (double& value : z.data) value *= 8;
  expect_gradients("gated", forward, backward, {rows(numbers), z, numbers.array({5})});
}

TEST(L2NormBackward, equals_central_differences) {
  Numbers numbers;
  const auto forward = [](const auto& x) { return std::vector{l2norm(x[0], 1e-6)}; };
  const auto backward = [](const auto& x, const auto& d) { return std::vector{l2norm_backward(x[0], 1e-6, d[0])}; };
  expect_gradients("rows", forward, backward, {rows(numbers)});
}

TEST(L2NormBackward, T26_a_zero_row_has_a_finite_gradient) {
  const Array<Ball> d_x = l2norm_backward(Array<Ball>({1, 2}), 1e-6, Array<Ball>({1, 2}, {1.0, -2.0}));
  EXPECT_NEAR(midpoint(d_x[0]), 1000, 1e-12);  // dy / sqrt(eps)
  EXPECT_NEAR(midpoint(d_x[1]), -2000, 1e-12);
  EXPECT_LT(radius(d_x[1]), 1e-30);
  const Array<double> plain = l2norm_backward(Array<double>({1, 2}), 1e-6, Array<double>({1, 2}, {1.0, -2.0}));
  EXPECT_NEAR(plain[0], 1000, 1e-9);
}

TEST(L2NormBackward, reuses_the_stored_result) {
  // y rounded to bf16 enters the slope: the permitted error of d_x contains it although d_x itself is small.
  Context low = context();
  low.rounding = {0x1p-24, bf16().unit_roundoff, 0x1p-126};
  const ContextScope scope(low);
  const Array<Bound> x({1, 2}, {Bound(3.0), Bound(4.0)}), dy({1, 2}, {Bound(3.0), Bound(4.0)});
  const Array<Bound> d_x = l2norm_backward(x, 1e-6, dy);
  const double y = rounded(bf16(), 0.6), slope = 3 * y + 4 * rounded(bf16(), 0.8);
  const double stored = 0.2 * 3 - 0.2 * slope * y;
  EXPECT_GT(std::abs(stored), 1e-4);
  EXPECT_LT(std::abs(d_x[0].v), 1e-6);
  EXPECT_LE(std::abs(stored - d_x[0].v), d_x[0].e);
}

TEST(NormBackward, an_absent_cotangent_is_zero_and_another_shape_is_an_error) {
  const Array<double> x({1, 2}, {1.0, 2.0});
  EXPECT_EQ(l2norm_backward(x, 1e-6, Array<double>()).data, (std::vector<double>{0, 0}));
  EXPECT_EQ(rms_norm_backward(x, Array<double>({2}, {1.0, 1.0}), 1e-5, Array<double>()).d_weight.data,
            (std::vector<double>{0, 0}));
  EXPECT_THROW(l2norm_backward(x, 1e-6, Array<double>({2, 1})), InputError);
}

TEST(NormBackwardOps, calls_read_operands_and_attributes_by_their_names) {
  OpTable<double> table;
  add_norm_backward_ops(table);
  EXPECT_EQ(table.size(), 4U);
  const auto reals = [](Shape shape, const std::vector<double>& x) {
    return Tensor::from_reals(DType::kF64, std::move(shape), x);
  };
  OpCall call;
  call.attributes = {{"eps", 0.0}};
  call.inputs = {{"x", reals({1, 2}, {1, 1})},   {"o", reals({1, 2}, {1, 1})}, {"z", reals({1, 2}, {0, 0})},
                 {"weight", reals({2}, {2, 2})}, {"bias", reals({2}, {0, 0})}, {"d_y", reals({1, 2}, {1, 0})}};
  const auto values = [&](const char* op, const char* name) {
    return std::get<Array<double>>(table.at(op)(Call<double>(call)).at(name)).data;
  };
  EXPECT_EQ(values("rms_norm.backward", "d_x"), (std::vector<double>{1, -1}));
  EXPECT_EQ(values("rms_norm.backward", "d_weight"), (std::vector<double>{1, 0}));
  EXPECT_EQ(values("gated_rms_norm.backward", "d_o"), (std::vector<double>{0.5, -0.5}));
  EXPECT_EQ(values("gated_rms_norm.backward", "d_z"), (std::vector<double>{0.5, 0}));
  EXPECT_EQ(values("gated_rms_norm.backward", "d_weight"), (std::vector<double>{0.5, 0}));
  call.inputs.at("x") = reals({1, 2}, {1, -1});
  EXPECT_EQ(values("layer_norm.backward", "d_weight"), (std::vector<double>{1, 0}));
  EXPECT_EQ(values("layer_norm.backward", "d_bias"), (std::vector<double>{1, 0}));
  call.inputs.at("x") = reals({1, 2}, {2, 0});
  EXPECT_EQ(values("l2norm.backward", "d_x"), (std::vector<double>{0, 0}));
  call.inputs.erase("weight");
  EXPECT_EQ(table.at("rms_norm.backward")(Call<double>(call)).count("d_weight"), 0U);
}

}  // namespace
}  // namespace assay::reference
