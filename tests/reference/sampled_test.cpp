#include "reference/sampled.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "reference/scalar.h"

namespace assay::reference {
namespace {

Context model(double compute, double activation, std::uint64_t stream) {
  Context result;
  result.rounding = {.compute = compute, .activation = activation, .tiny = 0x1p-126};
  result.stream = stream;
  return result;
}

template <class T>
T softmax_entry(const std::vector<double>& x) {
  std::vector<T> exps, ones(x.size(), T(1.0));
  for (const double v : x) exps.push_back(exp(T(v)));
  return exps[0] / dot(exps.data(), 1, ones.data(), 1, static_cast<std::ptrdiff_t>(x.size()));
}

TEST(Sampled, the_same_stream_gives_the_same_run_and_another_one_another) {
  const std::vector<double> x = {0.3, -1.2, 2.5};
  const auto run = [&](std::uint64_t stream) {
    const ContextScope scope(model(0x1p-24, 0x1p-24, stream));
    return softmax_entry<Sampled>(x).v;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(Sampled, one_operation_is_off_by_at_most_one_rounding) {
  double largest = 0.0, sum = 0.0;
  for (std::uint64_t stream = 0; stream < 2000; ++stream) {
    const ContextScope scope(model(0x1p-24, 0x1p-8, stream));
    const double off = (Sampled(1.0) + Sampled(0.5)).v / 1.5 - 1;
    EXPECT_LE(std::abs(off), 0x1p-24 * (1 + 1e-6));
    largest = std::max(largest, std::abs(off));
    sum += off;
    EXPECT_LE(std::abs(round_at(point("linear/y"), Sampled(3.0)).v / 3 - 1), 0x1p-8);
    EXPECT_LE(std::abs(round_compute(Sampled(3.0)).v / 3 - 1), 0x1p-24 * (1 + 1e-6));
  }
  EXPECT_GT(largest, 0.99 * 0x1p-24) << "the whole rounding is used";
  // The mean of 2000 uniform numbers has a standard deviation of 0.013 of their half width.
  EXPECT_LT(std::abs(sum / 2000), 0.06 * 0x1p-24) << "no preferred direction";
}

TEST(Sampled, choices_and_exact_numbers_are_not_disturbed) {
  const ContextScope scope(model(0x1p-24, 0x1p-8, 5));
  EXPECT_EQ(Sampled(0.1).v, 0.1);
  EXPECT_EQ((-Sampled(0.1)).v, -0.1);
  EXPECT_EQ(abs(Sampled(-0.1)).v, 0.1);
  EXPECT_EQ(relu(Sampled(-0.1)).v, 0.0);
  EXPECT_EQ(relu(Sampled(0.1)).v, 0.1);
  EXPECT_EQ(clamp_above(Sampled(12.5), 10.0).v, 10.0);
  EXPECT_EQ(clamp_below(Sampled(-12.5), -10.0).v, -10.0);
  EXPECT_EQ((Sampled(0.0) * Sampled(5.0)).v, 0.0) << "zero stays zero";
}

TEST(Sampled, runs_stay_within_the_bound_and_use_some_of_it) {
  const std::vector<double> x = {0.3, -1.2, 2.5, 0.7, -3.0};
  const ContextScope outer(model(0x1p-24, 0x1p-24, 0));
  const Bound bound = softmax_entry<Bound>(x);
  double largest = 0.0;
  for (std::uint64_t stream = 0; stream < 500; ++stream) {
    const ContextScope scope(model(0x1p-24, 0x1p-24, stream));
    const double error = std::abs(softmax_entry<Sampled>(x).v - bound.v);
    EXPECT_LE(error, bound.e);
    largest = std::max(largest, error);
  }
  EXPECT_GT(largest, 0.05 * bound.e);
}

TEST(Sampled, deviations_in_double_are_magnified_by_4096) {
  {
    const ContextScope scope(model(0x1p-24, 0x1p-24, 0));
    EXPECT_EQ(sampling_magnification(), 1.0);
  }
  double largest = 0.0;
  for (std::uint64_t stream = 0; stream < 500; ++stream) {
    const ContextScope scope(model(0x1p-53, 0x1p-53, stream));
    EXPECT_EQ(sampling_magnification(), 4096.0);
    largest = std::max(largest, std::abs((Sampled(1.0) * Sampled(1.5)).v / 1.5 - 1));
  }
  EXPECT_LE(largest, 4096 * 0x1p-53 * (1 + 1e-3));
  EXPECT_GT(largest, 0.9 * 4096 * 0x1p-53);
}

TEST(Sampled, functions_are_off_by_at_most_their_bound) {
  for (std::uint64_t stream = 0; stream < 200; ++stream) {
    const ContextScope scope(model(0x1p-24, 0x1p-24, stream));
    const double x = 0.1 + 0.05 * static_cast<double>(stream);
    const auto within = [&](const Sampled& s, const Bound& b, const char* name) {
      EXPECT_LE(std::abs(s.v - b.v), b.e) << name << " of " << x;
    };
    within(exp(Sampled(x)), exp(Bound(x)), "exp");
    within(log(Sampled(x)), log(Bound(x)), "log");
    within(sqrt(Sampled(x)), sqrt(Bound(x)), "sqrt");
    within(rsqrt(Sampled(x)), rsqrt(Bound(x)), "rsqrt");
    within(sigmoid(Sampled(x)), sigmoid(Bound(x)), "sigmoid");
    within(softplus(Sampled(x)), softplus(Bound(x)), "softplus");
    within(erf(Sampled(x)), erf(Bound(x)), "erf");
    within(sin(Sampled(x)), sin(Bound(x)), "sin");
    within(cos(Sampled(x)), cos(Bound(x)), "cos");
    within(pow(Sampled(x), Sampled(1.5)), pow(Bound(x), Bound(1.5)), "pow");
  }
}

}  // namespace
}  // namespace assay::reference
