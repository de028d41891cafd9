// `Sampled`: Monte Carlo arithmetic. A double that every operation disturbs by a random rounding of the context's
// RoundingModel: the reference's text executed as an implementation might have, once per seed. The spread of a few runs
// tells how far rounding carries through compositions that are too long for Bound.
//
// With Execution::kNearest it is one such implementation instead: every operation rounds to the compute format, every
// point to the format of its contract, sums run in an order that the seed chooses among those of the declared tree.
//
// A disturbance of 2^-53 cannot be seen in a double, so it is magnified: deviations are `sampling_magnification()`
// times too large, which is exact to first order as long as they stay small; the caller divides.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reference/context.h"

namespace assay::reference {

struct Sampled {
  double v = 0.0;

  Sampled() = default;
  Sampled(double exact_value) : v(exact_value) {}  // NOLINT: numbers widen exactly

  Sampled& operator+=(const Sampled& b);
  Sampled& operator-=(const Sampled& b);
  Sampled& operator*=(const Sampled& b);
  Sampled& operator/=(const Sampled& b);
};

/// 2^12 where the compute format is double and roundings are random, else 1.
double sampling_magnification();

Sampled operator+(const Sampled& a, const Sampled& b);
Sampled operator-(const Sampled& a, const Sampled& b);
Sampled operator*(const Sampled& a, const Sampled& b);
Sampled operator/(const Sampled& a, const Sampled& b);
inline Sampled operator-(const Sampled& a) { return {-a.v}; }

Sampled exact(double value, const Sampled*);
Sampled exp(const Sampled& x);
Sampled log(const Sampled& x);
Sampled sqrt(const Sampled& x);
Sampled rsqrt(const Sampled& x);
Sampled sigmoid(const Sampled& x);
Sampled softplus(const Sampled& x);
Sampled erf(const Sampled& x);
Sampled sin(const Sampled& x);
Sampled cos(const Sampled& x);
Sampled pow(const Sampled& x, const Sampled& y);
inline Sampled abs(const Sampled& x) { return {x.v < 0 ? -x.v : x.v}; }
inline Sampled relu(const Sampled& x) { return {x.v > 0 ? x.v : 0.0}; }
inline Sampled clamp_above(const Sampled& x, double limit) { return {x.v > limit ? limit : x.v}; }
inline Sampled clamp_below(const Sampled& x, double limit) { return {x.v < limit ? limit : x.v}; }
inline double midpoint(const Sampled& x) { return x.v; }
inline double radius(const Sampled&) { return 0.0; }
Sampled round_at(Point point, const Sampled& x);
Sampled round_compute(const Sampled& x);

Sampled dot(const Sampled* a, std::ptrdiff_t a_step, const Sampled* b, std::ptrdiff_t b_step, std::ptrdiff_t n);

}  // namespace assay::reference
