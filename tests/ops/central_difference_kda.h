// The proof of a backward: in Real against central differences of the forward, in Ball around Real, in double within
// Bound, and in Sampled within Bound under the roundings of float32 and bf16.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cases/formats.h"
#include "reference/array.h"

namespace assay::reference::proof {

template <class T>
using Arrays = std::vector<Array<T>>;

class Numbers {
 public:
  explicit Numbers(std::uint32_t seed = 20240817) : generator_(seed) {}
  /// A multiple of 2^-20 in [-1, 1).
  double next() { return static_cast<double>(static_cast<std::int32_t>(generator_() >> 11) - (1 << 20)) * 0x1p-20; }
  Array<double> array(Shape shape) {
    Array<double> x(std::move(shape));
    for (double& value : x.data) value = next();
    return x;
  }

 private:
  std::mt19937 generator_;
};

template <class T>
Array<T> widen(const Array<double>& x) {
  return Array<T>(x.shape, std::vector<T>(x.data.begin(), x.data.end()));
}

template <class T>
Arrays<T> widen(const Arrays<double>& x) {
  Arrays<T> result;
  for (const Array<double>& array : x) result.push_back(widen<T>(array));
  return result;
}

template <class T>
double largest(const Array<T>& x) {
  double result = 0;
  for (const T& value : x.data) result = std::max(result, std::abs(midpoint(value)));
  return result;
}

/// Scope in which Real has 256 bits.
inline Context precise() {
  Context wanted = context();
  wanted.bits = 256;
  return wanted;
}

inline Real weighted_sum(const Arrays<Real>& weights, const Arrays<Real>& outputs) {
  Real sum = 0;
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    for (std::int64_t i = 0; i < outputs[o].size(); ++i) sum += weights[o][i] * outputs[o][i];
  }
  return sum;
}

/// d sum(cotangents * forward(inputs)) / d inputs[which]. The truncation error is 2^-140 of the third derivative.
template <class Forward>
Array<Real> central_difference(const Forward& forward, Arrays<Real> inputs, const Arrays<Real>& cotangents,
                               std::size_t which) {
  const Real step = 0x1p-70;
  Array<Real> gradient(inputs[which].shape);
  for (std::int64_t i = 0; i < gradient.size(); ++i) {
    Real& x = inputs[which][i];
    const Real centre = x;
    x = centre + step;
    const Real above = weighted_sum(cotangents, forward(inputs));
    x = centre - step;
    const Real below = weighted_sum(cotangents, forward(inputs));
    x = centre;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

/// Largest difference relative to the largest element.
inline double deviation(const Array<Real>& a, const Array<Real>& b) {
  double worst = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(midpoint(Real(a[i] - b[i]))));
  return worst == 0 ? 0 : worst / largest(b);
}

/// forward(inputs) -> outputs and backward(inputs, cotangents) -> one gradient per input (empty for an empty input),
/// for any scalar. `widest` is for the balls, relative to the largest element of the gradient.
template <class Forward, class Backward>
void expect_gradients(const std::string& name, const Forward& forward, const Backward& backward,
                      const Arrays<double>& inputs, double widest = 1e-25) {
  SCOPED_TRACE(name);
  Numbers numbers(7);
  Arrays<double> cotangents;
  for (const Array<double>& output : forward(inputs)) cotangents.push_back(numbers.array(output.shape));

  const Arrays<Ball> balls = backward(widen<Ball>(inputs), widen<Ball>(cotangents));
  const Arrays<double> doubles = backward(inputs, cotangents);
  const Arrays<Bound> bounds = backward(widen<Bound>(inputs), widen<Bound>(cotangents));
  Context low = context();
  low.rounding = {0x1p-24, bf16().unit_roundoff, 0x1p-126};
  Arrays<Bound> low_bounds;
  std::vector<Arrays<Sampled>> samples;
  {
    const ContextScope scope(low);
    low_bounds = backward(widen<Bound>(inputs), widen<Bound>(cotangents));
    for (int run = 0; run < 2; ++run) samples.push_back(backward(widen<Sampled>(inputs), widen<Sampled>(cotangents)));
  }
  const ContextScope scope(precise());
  const Arrays<Real> exact_inputs = widen<Real>(inputs), exact_cotangents = widen<Real>(cotangents);
  const Arrays<Real> gradients = backward(exact_inputs, exact_cotangents);
  ASSERT_EQ(gradients.size(), inputs.size());
  for (std::size_t which = 0; which < inputs.size(); ++which) {
    SCOPED_TRACE("input " + std::to_string(which));
    const Array<Real>& gradient = gradients[which];
    ASSERT_EQ(gradient.shape, inputs[which].shape);
    const Array<Real> difference = central_difference(forward, exact_inputs, exact_cotangents, which);
    EXPECT_LT(deviation(gradient, difference), 1e-20);
    const double scale = largest(gradient);
    for (std::int64_t i = 0; i < gradient.size(); ++i) {
      const Ball truth = to_ball(gradient[i]);
      const double value = midpoint(gradient[i]);
      EXPECT_TRUE(std::isfinite(value) && std::isfinite(midpoint(difference[i]))) << i;
      EXPECT_TRUE(arb_contains(balls[which][i].data(), truth.data())) << i;
      EXPECT_LT(radius(balls[which][i]), widest * scale) << i;
      EXPECT_LE(std::abs(doubles[which][i] - value), bounds[which][i].e) << i;
      for (const Arrays<Sampled>& sample : samples) {
        EXPECT_LE(std::abs(sample[which][i].v - value), low_bounds[which][i].e) << i;
      }
    }
  }
}

}  // namespace assay::reference::proof
