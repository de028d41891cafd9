// The scalars of the reference: one source text, five readings.
//   double  fast
//   Real    precise: MPFR, precision chosen at run time
//   Ball    certified: midpoint and rigorous radius
//   Bound   permitted: value and the error an implementation may make under the context's RoundingModel
//   Sampled executed: a double disturbed by random roundings of that model (Monte Carlo arithmetic)
// Every scalar has + - * /, exact(value, T*), exp log sqrt rsqrt sigmoid softplus erf sin cos pow abs relu clamp_above
// clamp_below, dot, midpoint, radius, round_at and round_compute. The last two are identities except for Bound and Sampled,
// and round_at for the others if the context executes a contract: exact between the points, rounded at them.
#pragma once

#include <cmath>
#include <cstddef>
#include <type_traits>

#include "reference/ball.h"
#include "reference/bound.h"
#include "reference/real.h"
#include "reference/sampled.h"

namespace assay::reference {

inline double exact(double value, const double*) { return value; }
inline double exp(double x) { return std::exp(x); }
inline double log(double x) { return std::log(x); }
inline double sqrt(double x) { return std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
inline double erf(double x) { return std::erf(x); }
inline double sin(double x) { return std::sin(x); }
inline double cos(double x) { return std::cos(x); }
inline double pow(double x, double y) { return std::pow(x, y); }
inline double abs(double x) { return std::abs(x); }
inline double relu(double x) { return x > 0 ? x : 0.0; }
inline double clamp_above(double x, double limit) { return x > limit ? limit : x; }
inline double clamp_below(double x, double limit) { return x < limit ? limit : x; }
inline double midpoint(double x) { return x; }
inline double radius(double) { return 0.0; }
double round_at(Point point, double x);
inline double round_compute(double x) { return x; }
inline double dot(const double* a, std::ptrdiff_t a_step, const double* b, std::ptrdiff_t b_step, std::ptrdiff_t n) {
  double sum = 0.0;
  for (std::ptrdiff_t i = 0; i < n; ++i) sum += a[i * a_step] * b[i * b_step];
  return sum;
}

/// A constant of a formula in scalar T: exact<T>(1e-6) is the double nearest to 1e-6.
template <class T>
T constant(double value) {
  return exact(value, static_cast<const T*>(nullptr));
}

/// Whether round_at changes values of scalar T at this point.
template <class T>
bool rounds_at(Point point) {
  if constexpr (std::is_same_v<T, Bound> || std::is_same_v<T, Sampled>) return format_at(point).unit > 0.0;
  return context().execute && format_at(point).format != nullptr;
}

/// n^-1/2 in T, a constant of a formula.
template <class T>
T inverse_root(std::int64_t n) {
  return rsqrt(T(static_cast<double>(n)));
}

/// The exact widening of any scalar's value to a ball: double and Real to a point, Bound and Sampled to their value,
/// Ball to itself.
inline Ball to_ball(double x) { return Ball(x); }
Ball to_ball(const Real& x);
inline Ball to_ball(const Ball& x) { return x; }
inline Ball to_ball(const Bound& x) { return Ball(x.v); }
inline Ball to_ball(const Sampled& x) { return Ball(x.v); }

}  // namespace assay::reference

/// Instantiates a template for every scalar: ASSAY_FOR_SCALARS(MACRO) expands MACRO(T) for each.
#define ASSAY_FOR_SCALARS(macro)                                                                                 \
  macro(double) macro(::assay::reference::Real) macro(::assay::reference::Ball) macro(::assay::reference::Bound) \
      macro(::assay::reference::Sampled)
