// Short convolution, decay gate, step size, and the norms around KDA. Numbers: shared/cases/public_reports.md part 3.
#include "reference/ops/kda.h"

#include <cmath>

#include <gtest/gtest.h>

#include "cases/formats.h"
#include "cases/ops/kda.h"
#include "reference/ops/delta_rule.h"
#include "reference/ops/norm.h"

namespace assay::reference {
namespace {

Array<Ball> balls(Shape shape, const std::vector<double>& values) {
  return {std::move(shape), std::vector<Ball>(values.begin(), values.end())};
}

/// g of one channel at f = x, dt_bias = 0.
double gate(double A_log, double x, std::optional<double> lower_bound) {
  return midpoint(kda_gate(balls({1, 1, 1}, {x}), balls({1}, {A_log}), Array<Ball>(), lower_bound)[0]);
}

TEST(KdaGate, T19_lower_bound_is_a_factor_not_a_clamp) {
  struct Case {
    double A_log, x, g, digits, clamped, clamped_digits;
  };
  for (const Case& c :
       {Case{0, 0, -2.5, 1e-15, -0.693147, 5e-7}, Case{0, 2, -4.40398539, 5e-9, -2.126928, 5e-7},
        Case{1, 0.5, -3.978100191, 5e-10, -2.647816, 5e-7}, Case{-3, 4, -2.74811586, 5e-9, -0.200052, 5e-7},
        Case{0, -12, -3.072087e-5, 5e-12, -6.144e-6, 5e-10}}) {
    EXPECT_NEAR(gate(c.A_log, c.x, -5.0), c.g, c.digits);
    EXPECT_NEAR(std::max(-5.0, gate(c.A_log, c.x, std::nullopt)), c.clamped, c.clamped_digits);
  }
}

TEST(KdaGate, T20_bias_is_inside_the_product) {
  const Array<Ball> A_log({2}, {Ball(0), log(Ball(2))});
  const Array<Ball> bias = balls({4}, {0, 1, 2, 3}), f({1, 2, 2});
  const Array<Ball> g = kda_gate(f, A_log, bias, -5.0);
  const double expected[] = {-2.5, -3.655292893, -4.91006895, -4.987636884};
  const double digits[] = {1e-15, 5e-10, 5e-9, 5e-10};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(midpoint(g[i]), expected[i], digits[i]);
  // The bias outside the product, for head 1.
  EXPECT_NEAR(-5.0 * sigmoid(2.0 * 0.0 + 2.0), -4.40398539, 5e-9);
  EXPECT_NEAR(-5.0 * sigmoid(2.0 * 0.0 + 3.0), -4.762870634, 5e-10);
}

TEST(KdaGate, T20_a_tensor_parallel_rank_owns_its_heads_rates_and_biases) {
  const Array<Ball> g = kda_gate(Array<Ball>({1, 1, 2}), Array<Ball>({1}, {log(Ball(2))}), balls({2}, {2, 3}), -5.0);
  EXPECT_NEAR(midpoint(g[0]), -4.91006895, 5e-9);
  EXPECT_NEAR(midpoint(g[1]), -4.987636884, 5e-10);
}

template <class T>
void gate_and_beta_are_inside_the_ball() {
  const std::vector<double> f{-12, -1, 0.25, 3, 20, 45}, rates{-2, 1}, bias{0.5, -0.5, 0, 1, 2, -4};
  const auto values = [&](Shape shape, const std::vector<double>& x) {
    return Array<T>(std::move(shape), std::vector<T>(x.begin(), x.end()));
  };
  for (const std::optional<double> bound : {std::optional<double>(), std::optional<double>(-5.0)}) {
    const Array<T> g = kda_gate(values({1, 2, 3}, f), values({2}, rates), values({6}, bias), bound);
    const Array<Ball> truth = kda_gate(balls({1, 2, 3}, f), balls({2}, rates), balls({6}, bias), bound);
    for (int i = 0; i < 6; ++i) EXPECT_NEAR(midpoint(g[i]), midpoint(truth[i]), 1e-14 * std::abs(midpoint(truth[i])));
  }
  const Array<T> b = beta(values({6}, f));
  const Array<Ball> truth = beta(balls({6}, f));
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(midpoint(b[i]), midpoint(truth[i]), 1e-14);
}

TEST(KdaGate, every_scalar_reads_the_same_formula) {
  gate_and_beta_are_inside_the_ball<double>();
  gate_and_beta_are_inside_the_ball<Real>();
  gate_and_beta_are_inside_the_ball<Bound>();
}

TEST(Beta, is_the_sigmoid_not_doubled) {
  EXPECT_NEAR(midpoint(beta(balls({1}, {2.0}))[0]), 0.88079707797788244, 1e-16);
}

double silu(double x) { return x / (1 + std::exp(-x)); }

TEST(KdaConv, last_tap_multiplies_the_current_token) {
  const Array<Ball> u = balls({5, 2}, {1, 10, 2, 20, 3, 30, 4, 40, 5, 50});
  const Array<Ball> w = balls({2, 4}, {0.125, 0.25, 0.5, 1, 0, 0, 0, 0.5});
  const Array<Ball> y = kda_conv(u, w, Index(), Array<Ball>());
  const double first[] = {1, 2.5, 4.25, 6.125, 8};  // 5 + 4/2 + 3/4 + 2/8 at the last token
  for (int t = 0; t < 5; ++t) {
    EXPECT_NEAR(midpoint(y.at(t, 0)), silu(first[t]), 1e-14);
    EXPECT_NEAR(midpoint(y.at(t, 1)), silu(5.0 * (t + 1)), 1e-13);
  }
}

TEST(KdaConv, T27_left_context_restarts_at_every_document) {
  std::vector<double> values;
  for (int i = 0; i < 36; ++i) values.push_back(((i * 7) % 11 - 5) * 0.25);
  const Array<double> u({12, 3}, values), w({3, 4}, std::vector<double>(values.begin(), values.begin() + 12));
  const Index boundaries({5}, {0, 5, 5, 6, 12});
  const Array<double> packed = kda_conv(u, w, boundaries, Array<double>());
  for (int i = 0; i + 1 < boundaries.size(); ++i) {
    const std::int64_t length = boundaries[i + 1] - boundaries[i];
    const Array<double> alone({length, 3}, std::vector<double>(u.row(boundaries[i], 3), u.row(boundaries[i + 1], 3)));
    const Array<double> y = kda_conv(alone, w, Index(), Array<double>());
    for (std::int64_t j = 0; j < y.size(); ++j) EXPECT_EQ(y[j], packed[boundaries[i] * 3 + j]);
  }
}

TEST(KdaConv, initial_rows_continue_a_run_for_any_length_of_the_rest) {
  std::vector<double> values;
  for (int i = 0; i < 16; ++i) values.push_back(((i * 5) % 13 - 6) * 0.5);
  const Array<double> u({8, 2}, values), w({2, 4}, {0.5, -1, 2, 1, 1, 0.25, -0.5, 3});
  const Array<double> whole = kda_conv(u, w, Index(), Array<double>());
  for (std::int64_t cut = 3; cut < 8; ++cut) {
    const Array<double> rest({8 - cut, 2}, std::vector<double>(u.row(cut, 2), u.row(8, 2)));
    const Array<double> before({3, 2}, std::vector<double>(u.row(cut - 3, 2), u.row(cut, 2)));
    const Array<double> y = kda_conv(rest, w, Index(), before);
    for (std::int64_t j = 0; j < y.size(); ++j) EXPECT_EQ(y[j], whole[cut * 2 + j]);
    // Only the first document has a past: the second one starts clean.
    const Array<double> two = kda_conv(rest, w, Index({3}, {0, 1, 8 - cut}), before);
    if (8 - cut > 1) {
      EXPECT_EQ(two[2], silu(rest[2] * w[3]));
    }
  }
}

TEST(KdaConv, rounds_once_after_silu) {
  Context rounding;
  rounding.rounding = {0x1p-24, bf16().unit_roundoff, 0x1p-126};
  const ContextScope scope(rounding);
  const Array<Bound> y =
      kda_conv(Array<Bound>({1, 1}, {Bound(3.0)}), Array<Bound>({1, 4}, {0.0, 0.0, 0.0, 1.0}), Index(), Array<Bound>());
  EXPECT_GT(y[0].e, bf16().unit_roundoff * y[0].v);
  EXPECT_LT(y[0].e, bf16().unit_roundoff * y[0].v * 1.001);
}

double normalised(double x) { return midpoint(l2norm(balls({1, 2}, {x, 0}), 1e-6)[0]); }

TEST(L2Norm, T26_eps_is_added_inside_the_root) {
  EXPECT_NEAR(normalised(1e-3), 0.7071067812, 5e-11);
  EXPECT_NEAR(normalised(1e-2), 0.9950371902, 5e-11);
  EXPECT_EQ(normalised(0), 0.0);
  EXPECT_NEAR(1e-3 / (std::sqrt(1e-6) + 1e-6), 0.999001, 5e-7);               // eps outside
  EXPECT_NEAR(midpoint(l2norm(balls({1, 2}, {1e-3, 0}), 0.0)[0]), 1, 1e-15);  // eps dropped
}

TEST(GatedRmsNorm, T33_rounds_once_after_norm_and_gate) {
  // o = 1 and eps = 0 normalise to 1; the weight makes the normed value 1035/1024 and z the gate 171/256.
  const Ball gate_input = log(Ball(171) / Ball(85));
  const Array<Ball> y =
      gated_rms_norm(balls({1, 1}, {1}), Array<Ball>({1, 1}, {gate_input}), balls({1}, {1035.0 / 1024}), 0.0);
  EXPECT_TRUE(contains(y[0], 1035.0 / 1024 * 171 / 256));
  EXPECT_EQ(rounded(bf16(), midpoint(y[0])), 0.67578125);
  EXPECT_EQ(rounded(bf16(), rounded(bf16(), 1035.0 / 1024) * 171 / 256), 0.671875);  // rounding in between
}

template <class T>
void every_op_is_bound() {
  OpTable<T> table;
  add_kda_ops(table);
  EXPECT_EQ(table.size(), kda_ops().size());
  for (const OpSpec& op : kda_ops()) EXPECT_EQ(table.count(op.name), 1U) << op.name;
}

TEST(KdaOps, every_op_of_the_catalogue_has_its_formula) {
  every_op_is_bound<double>();
  every_op_is_bound<Real>();
  every_op_is_bound<Ball>();
  every_op_is_bound<Bound>();
}

TEST(KdaOps, calls_read_operands_and_attributes_by_their_names) {
  const auto reals = [](Shape shape, const std::vector<double>& x) {
    return Tensor::from_reals(DType::kF64, std::move(shape), x);
  };
  OpTable<double> table;
  add_kda_ops(table);
  const auto run = [&](const char* op, const nlohmann::json& attributes, std::map<std::string, Tensor> inputs) {
    return table.at(op)(Call<double>(make_call(op_named(op), attributes, std::move(inputs))));
  };
  const auto values = [](const Results<double>& results, const char* name) {
    return std::get<Array<double>>(results.at(name)).data;
  };
  const Tensor boundaries = Tensor::from_integers(DType::kI64, {3}, std::vector<std::int64_t>{0, 1, 2});
  EXPECT_EQ(values(run("kda_conv", {},
                       {{"u", reals({2, 1}, {1, 2})},
                        {"weight", reals({1, 2}, {3, 1})},
                        {"initial", reals({1, 1}, {1})},
                        {"cu_seqlens", boundaries}}),
                   "y"),
            (std::vector<double>{4 * sigmoid(4.0), 2 * sigmoid(2.0)}));
  EXPECT_EQ(values(run("kda_gate", {{"lower_bound", -4.0}},
                       {{"f", reals({1, 1, 1}, {-1})}, {"A_log", reals({1}, {0})}, {"dt_bias", reals({1}, {1})}}),
                   "g"),
            std::vector<double>{-2});
  EXPECT_EQ(values(run("beta", {}, {{"b", reals({1, 1}, {0})}}), "beta"), std::vector<double>{0.5});
  const std::map<std::string, Tensor> inputs{{"q", reals({2, 1, 1}, {1, 2})},
                                             {"k", reals({2, 1, 1}, {1, 1})},
                                             {"v", reals({2, 1, 1}, {3, 5})},
                                             {"g", reals({2, 1, 1}, {0, 0})},
                                             {"beta", reals({2, 1}, {0.5, 1})},
                                             {"cu_seqlens", boundaries},
                                             {"initial_state", reals({2, 1, 1, 1}, {1, 7})}};
  for (const char* op : {"delta_rule", "delta_rule_chunked"}) {
    const Results<double> results = run(op, {{"scale", 2.0}}, inputs);
    EXPECT_EQ(values(results, "o"), (std::vector<double>{4, 20})) << op;
    EXPECT_EQ(values(results, "final_state"), (std::vector<double>{2, 5})) << op;
  }
}

}  // namespace
}  // namespace assay::reference
