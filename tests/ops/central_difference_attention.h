// Proof of a backward: its gradients against central differences of the forward in 256 bits, the other scalars against
// the gradients in 256 bits.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "cases/formats.h"
#include "reference/array.h"

namespace assay::reference {

template <class T>
using Arrays = std::vector<Array<T>>;

/// Normal values rounded to bf16.
inline Array<double> random_array(Shape shape, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Array<double> result(std::move(shape));
  for (double& value : result.data) value = rounded(bf16(), normal(random));
  return result;
}

template <class T>
Arrays<T> widened(const Arrays<double>& arrays) {
  Arrays<T> result;
  for (const Array<double>& x : arrays) result.emplace_back(x.shape, std::vector<T>(x.data.begin(), x.data.end()));
  return result;
}

/// sum(cotangent * output) over the finite outputs (a row without tokens has a log-sum of minus infinity).
inline Real weighted_sum(const Arrays<Real>& outputs, const Arrays<Real>& cotangents) {
  Real sum(0);
  for (std::size_t a = 0; a < outputs.size(); ++a)
    for (std::int64_t i = 0; i < outputs[a].size(); ++i)
      if (std::isfinite(midpoint(outputs[a][i]))) sum += outputs[a][i] * cotangents[a][i];
  return sum;
}

template <class T>
double largest_magnitude(const Array<T>& x) {
  double largest = 0.0;
  for (const T& value : x.data) largest = std::max(largest, std::abs(midpoint(value)));
  return largest;
}

/// `forward` maps the arrays of the inputs to those of the outputs, `backward` inputs and cotangents to the gradients
/// of the inputs, in every scalar. The step 2^-44 leaves a truncation error of about 2^-90 and a rounding error of
/// about 2^-210.
template <class Forward, class Backward>
void prove_backward(const Arrays<double>& inputs, const Forward& forward, const Backward& backward) {
  const Arrays<double> plain_outputs = forward(inputs);
  Arrays<double> plain_cotangents;
  for (const Array<double>& y : plain_outputs)
    plain_cotangents.push_back(random_array(y.shape, static_cast<unsigned>(97 + plain_cotangents.size())));

  Context precise = context();
  precise.bits = 256;
  const ContextScope scope(precise);
  const Arrays<Real> cotangents = widened<Real>(plain_cotangents);
  Arrays<Real> moved = widened<Real>(inputs);
  const Arrays<Real> gradients = backward(moved, cotangents);
  ASSERT_EQ(gradients.size(), inputs.size());
  const Real step = ldexp(Real(1), -44);
  for (std::size_t a = 0; a < inputs.size(); ++a) {
    ASSERT_EQ(gradients[a].shape, inputs[a].shape) << "input " << a;
    double deviation = 0.0, size = 0.0;
    for (std::int64_t i = 0; i < moved[a].size(); ++i) {
      const Real centre = moved[a][i];
      moved[a][i] = centre + step;
      const Real above = weighted_sum(forward(moved), cotangents);
      moved[a][i] = centre - step;
      const Real below = weighted_sum(forward(moved), cotangents);
      moved[a][i] = centre;
      const Real difference = (above - below) / (2 * step);
      deviation = std::max(deviation, std::abs(midpoint(Real(difference - gradients[a][i]))));
      size = std::max(size, std::abs(midpoint(difference)));
    }
    EXPECT_GT(size, 1e-3) << "input " << a;
    EXPECT_LT(deviation, 1e-20 * size) << "input " << a;
  }

  // Ball encloses, double and Bound agree with the 256-bit values.
  Context certified = precise;
  certified.bits = 128;
  const ContextScope fewer_bits(certified);
  const Arrays<Ball> balls = backward(widened<Ball>(inputs), widened<Ball>(plain_cotangents));
  const Arrays<Bound> bounds = backward(widened<Bound>(inputs), widened<Bound>(plain_cotangents));
  const Arrays<double> doubles = backward(inputs, plain_cotangents);
  for (std::size_t a = 0; a < inputs.size(); ++a) {
    const double size = largest_magnitude(gradients[a]);
    for (std::int64_t i = 0; i < inputs[a].size(); ++i) {
      EXPECT_TRUE(overlap(balls[a][i], to_ball(gradients[a][i]))) << "input " << a << " element " << i;
      EXPECT_LT(radius(balls[a][i]), 1e-30 * size) << "input " << a << " element " << i;
      EXPECT_LE(std::abs(midpoint(Real(gradients[a][i] - bounds[a][i].v))), bounds[a][i].e) << "input " << a;
      EXPECT_LE(std::abs(doubles[a][i] - midpoint(gradients[a][i])), bounds[a][i].e) << "input " << a;
      EXPECT_LT(bounds[a][i].e, 1e-11 * size) << "input " << a << " element " << i;
    }
  }

  // An empty cotangent is a cotangent of zeros.
  for (std::size_t absent = 0; absent < plain_cotangents.size(); ++absent) {
    Arrays<double> zero = plain_cotangents, empty = plain_cotangents;
    for (double& value : zero[absent].data) value = 0.0;
    empty[absent] = Array<double>();
    const Arrays<double> expected = backward(inputs, zero), found = backward(inputs, empty);
    for (std::size_t a = 0; a < inputs.size(); ++a) {
      EXPECT_EQ(found[a].shape, inputs[a].shape);
      for (std::int64_t i = 0; i < found[a].size(); ++i)
        EXPECT_EQ(found[a][i], expected[a][i]) << "cotangent " << absent;
    }
  }
}

}  // namespace assay::reference
