// Proof of a backward: gradients in 256 bits against central differences of the forward, and the other scalars against
// the gradients in 256 bits.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "cases/formats.h"
#include "reference/call.h"

namespace assay::reference::proof {

template <class T>
using Arrays = std::vector<Array<T>>;

inline Context with_bits(int bits) {
  Context result = context();
  result.bits = bits;
  return result;
}

/// Normal values of the given scale, exact in float32.
inline Array<double> seeded(Shape shape, unsigned seed, double scale = 1.0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Array<double> result(std::move(shape));
  for (double& value : result.data) value = static_cast<double>(static_cast<float>(normal(random)));
  return result;
}

template <class T>
Array<T> as(const Array<double>& x) {
  return Array<T>(x.shape, std::vector<T>(x.data.begin(), x.data.end()));
}

template <class T>
Arrays<T> as(const Arrays<double>& arrays) {
  Arrays<T> result;
  for (const Array<double>& x : arrays) result.push_back(as<T>(x));
  return result;
}

inline Real weighted_sum(const Arrays<Real>& outputs, const Arrays<Real>& cotangents) {
  Real sum(0);
  for (std::size_t a = 0; a < outputs.size(); ++a)
    for (std::int64_t i = 0; i < outputs[a].size(); ++i) sum += outputs[a][i] * cotangents[a][i];
  return sum;
}

inline double distance(const Real& a, const Real& b) { return std::abs(midpoint(Real(a - b))); }

/// `forward` maps inputs to outputs, `backward` inputs and cotangents to the gradients of the inputs; both in every
/// scalar. The step is 2^-64: inputs of size 1e-3 leave a truncation error of 1e-32 of the scale, rounding 1e-57.
/// `radius_limit`: of a 128-bit ball, relative to the largest entry of its tensor; `bound_limit`: the same for Bound
/// under double precision.
template <class Forward, class Backward>
void prove(const Arrays<double>& inputs, const Forward& forward, const Backward& backward, double radius_limit = 1e-25,
           double bound_limit = 1e-9) {
  Arrays<double> plain;
  for (const Array<double>& y : forward(inputs))
    plain.push_back(seeded(y.shape, 97 + static_cast<unsigned>(plain.size())));

  const ContextScope precise(with_bits(256));
  const Arrays<Real> cotangents = as<Real>(plain);
  Arrays<Real> moved = as<Real>(inputs);
  const Arrays<Real> gradients = backward(moved, cotangents);
  ASSERT_EQ(gradients.size(), inputs.size());
  const Real step = ldexp(Real(1), -64);
  std::vector<double> sizes;
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
      deviation = std::max(deviation, distance(difference, gradients[a][i]));
      size = std::max(size, std::abs(midpoint(difference)));
    }
    EXPECT_GT(size, 0.0) << "input " << a;
    EXPECT_LT(deviation, 1e-20 * size) << "input " << a;
    sizes.push_back(size);
  }

  const ContextScope certified(with_bits(128));
  const Arrays<Ball> balls = backward(as<Ball>(inputs), as<Ball>(plain));
  const Arrays<Bound> bounds = backward(as<Bound>(inputs), as<Bound>(plain));
  const Arrays<double> doubles = backward(inputs, plain);
  for (std::size_t a = 0; a < inputs.size(); ++a)
    for (std::int64_t i = 0; i < inputs[a].size(); ++i) {
      const Real& truth = gradients[a][i];
      EXPECT_TRUE(arb_contains(balls[a][i].data(), to_ball(truth).data())) << "input " << a << " element " << i;
      EXPECT_LT(radius(balls[a][i]), radius_limit * sizes[a]) << "input " << a << " element " << i;
      EXPECT_LE(distance(truth, Real(bounds[a][i].v)), bounds[a][i].e) << "input " << a << " element " << i;
      EXPECT_LE(distance(truth, Real(doubles[a][i])), bounds[a][i].e) << "input " << a << " element " << i;
      EXPECT_LT(bounds[a][i].e, bound_limit * sizes[a]) << "input " << a << " element " << i;
    }

  // An empty cotangent is a cotangent of zeros.
  for (std::size_t absent = 0; absent < plain.size(); ++absent) {
    Arrays<double> zero = plain, empty = plain;
    for (double& value : zero[absent].data) value = 0.0;
    empty[absent] = Array<double>();
    const Arrays<double> expected = backward(inputs, zero), found = backward(inputs, empty);
    for (std::size_t a = 0; a < inputs.size(); ++a) {
      ASSERT_EQ(found[a].shape, inputs[a].shape);
      for (std::int64_t i = 0; i < found[a].size(); ++i)
        EXPECT_EQ(found[a][i], expected[a][i]) << "cotangent " << absent;
    }
  }
}

/// The call of an op's backward by the rule: the forward's operands and one cotangent "d_<output>" for each real output
/// that is named, all optional.
inline OpSpec backward_spec(const std::string& op, const std::vector<std::string>& outputs) {
  OpSpec spec = op_named(op);
  spec.name += ".backward";
  for (const OperandSpec& output : spec.outputs)
    for (const std::string& name : outputs)
      if (output.name == name) spec.inputs.push_back({"d_" + name, output.dims, OperandKind::kReal, true, ""});
  spec.outputs.clear();
  return spec;
}

inline Tensor tensor(const Array<double>& x) { return Tensor::from_reals(DType::kF64, x.shape, x.data); }

inline const Array<double>& real_result(const Results<double>& results, const std::string& name) {
  return std::get<Array<double>>(results.at(name));
}

}  // namespace assay::reference::proof
