// `Bound`: a value with a bound on the error of ANY implementation that computes the same formula under the context's
// RoundingModel. It is the reference's text read a fourth time, as a running error analysis:
//
//   a value x~ that an implementation may hold satisfies |x~ - v| <= e.
//   x op y:   e = (propagated error) + u |v|          one rounding to the compute format
//   sums and dots: (d+1) u sum|a||b| with d the depth of the declared tree (any order: the number of terms) covers every
//             order that the tree allows, and fused or separate multiplication
//             ((1+u)^d - 1 <= d u (1 + 2^-10) for d u < 2^-11: Higham, Accuracy and Stability, lemma 3.1)
//   functions: function_ulps * 2u |f| + the derivative's bound over the ball
//   rounding points: + u (|v| + e), u of the format that the contract names (cases/contract.h)
//
// First-order terms are kept with their products, and everything is inflated by 1 + 2^-40 against this class's own
// double rounding; it is a bound, not an estimate.
#pragma once

#include <cstddef>

#include "reference/context.h"

namespace assay::reference {

struct Bound {
  double v = 0.0;
  double e = 0.0;

  Bound() = default;
  Bound(double exact_value) : v(exact_value) {}  // NOLINT: numbers widen exactly
  Bound(double value, double error) : v(value), e(error) {}

  Bound& operator+=(const Bound& b);
  Bound& operator-=(const Bound& b);
  Bound& operator*=(const Bound& b);
  Bound& operator/=(const Bound& b);
};

Bound operator+(const Bound& a, const Bound& b);
Bound operator-(const Bound& a, const Bound& b);
Bound operator*(const Bound& a, const Bound& b);
Bound operator/(const Bound& a, const Bound& b);
inline Bound operator-(const Bound& a) { return {-a.v, a.e}; }

/// A constant of the formula, rounded to the compute format by an implementation.
Bound exact(double value, const Bound*);
Bound exp(const Bound& x);
Bound log(const Bound& x);
Bound sqrt(const Bound& x);
Bound rsqrt(const Bound& x);
Bound sigmoid(const Bound& x);
Bound softplus(const Bound& x);
Bound erf(const Bound& x);
Bound sin(const Bound& x);
Bound cos(const Bound& x);
Bound pow(const Bound& x, const Bound& y);
Bound abs(const Bound& x);
Bound relu(const Bound& x);
Bound clamp_above(const Bound& x, double limit);
Bound clamp_below(const Bound& x, double limit);
inline double midpoint(const Bound& x) { return x.v; }
inline double radius(const Bound& x) { return x.e; }
/// The rounding of a declared point, if the contract rounds there.
Bound round_at(Point point, const Bound& x);
/// A rounding to the compute format (a store between two steps).
Bound round_compute(const Bound& x);

Bound dot(const Bound* a, std::ptrdiff_t a_step, const Bound* b, std::ptrdiff_t b_step, std::ptrdiff_t n);

}  // namespace assay::reference
