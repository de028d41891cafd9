#include "reference/bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace assay::reference {
namespace {

constexpr double kInflation = 1.0 + 0x1p-40;
constexpr double kOwnUnit = 0x1p-53;  // this class computes v in double
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const RoundingModel& model() { return context().rounding; }

/// `value` with propagated error `e`, then one rounding with relative error `u`.
Bound stored(double value, double e, double u) {
  return {value, (e + (u + kOwnUnit) * (std::abs(value) + e) + model().tiny) * kInflation};
}

/// f(x) for a function with |f'| <= slope on the ball.
Bound function_value(double value, double slope, double x_error) {
  const double e = slope * x_error;
  const double u = 2.0 * model().function_ulps * model().compute + 2.0 * kOwnUnit;
  return {value, (e + u * (std::abs(value) + e) + model().tiny) * kInflation};
}

}  // namespace

Bound operator+(const Bound& a, const Bound& b) { return stored(a.v + b.v, a.e + b.e, model().compute); }
Bound operator-(const Bound& a, const Bound& b) { return stored(a.v - b.v, a.e + b.e, model().compute); }
Bound operator*(const Bound& a, const Bound& b) {
  return stored(a.v * b.v, std::abs(a.v) * b.e + a.e * std::abs(b.v) + a.e * b.e, model().compute);
}

Bound operator/(const Bound& a, const Bound& b) {
  const double least = std::abs(b.v) - b.e;
  if (!(least > 0.0)) return {a.v / b.v, kInfinity};
  const double quotient = a.v / b.v;
  // |a~/b~ - a/b| <= (e_a + |a/b| e_b) / (|b| - e_b)
  return stored(quotient, (a.e + std::abs(quotient) * b.e) / least, model().compute);
}

Bound& Bound::operator+=(const Bound& b) { return *this = *this + b; }
Bound& Bound::operator-=(const Bound& b) { return *this = *this - b; }
Bound& Bound::operator*=(const Bound& b) { return *this = *this * b; }
Bound& Bound::operator/=(const Bound& b) { return *this = *this / b; }

Bound exact(double value, const Bound*) { return {value, model().compute * std::abs(value)}; }

Bound exp(const Bound& x) {
  const double value = std::exp(x.v);
  // Implementations reduce the argument in the compute format (base 2 included): |x| u more relative error.
  return function_value(value, value * std::exp(x.e), x.e + std::abs(x.v) * 2.0 * model().compute);
}

Bound log(const Bound& x) {
  const double least = x.v - x.e;
  return least > 0.0 ? function_value(std::log(x.v), 1.0 / least, x.e) : Bound{std::log(x.v), kInfinity};
}

Bound sqrt(const Bound& x) {
  const double value = std::sqrt(x.v);
  if (x.e == 0.0) return function_value(value, 0.0, 0.0);
  const double least = x.v - x.e;
  // |sqrt(a) - sqrt(b)| <= |a - b| / sqrt(b), and never more than sqrt(|a - b|).
  const double slope = least > 0.0 ? 0.5 / std::sqrt(least) : 1.0 / std::sqrt(x.e);
  return function_value(value, std::min(slope, 1.0 / std::sqrt(x.e)), x.e);
}

Bound rsqrt(const Bound& x) {
  const double least = x.v - x.e;
  const double value = 1.0 / std::sqrt(x.v);
  return least > 0.0 ? function_value(value, 0.5 / (least * std::sqrt(least)), x.e) : Bound{value, kInfinity};
}

Bound sigmoid(const Bound& x) {
  const double value = 1.0 / (1.0 + std::exp(-x.v));
  const double complement = 1.0 / (1.0 + std::exp(x.v));
  // |s'| = s (1 - s), which changes by at most exp(e) over the ball. The formula passes through exp(-|x|) and 1 + exp:
  // its argument reduction costs |x| u s (1 - s), the rest is a few roundings of s itself.
  const double slope = std::min(0.25, value * complement * std::exp(x.e));
  Bound result = function_value(value, slope, x.e + std::abs(x.v) * 2.0 * model().compute);
  result.e += 3.0 * model().compute * value;
  return result;
}

Bound softplus(const Bound& x) {
  const double value = x.v > 0 ? x.v + std::log1p(std::exp(-x.v)) : std::log1p(std::exp(x.v));
  Bound result = function_value(value, std::min(1.0, std::exp(x.v + x.e)), x.e + std::abs(x.v) * 2.0 * model().compute);
  // Above its threshold a public implementation returns x itself (torch and FLA: 20): log1p(exp(-20)) off.
  if (x.v + x.e > 20.0) result.e += std::log1p(std::exp(-20.0));
  // log(1 + t) of a rounded 1 + t (the base-2 form of a kernel): one rounding of 1 + t, absolute.
  result.e += 2.0 * model().compute;
  return result;
}

Bound erf(const Bound& x) { return function_value(std::erf(x.v), 1.1283791670955126 /* 2/sqrt(pi) */, x.e); }
Bound sin(const Bound& x) { return function_value(std::sin(x.v), 1.0, x.e); }
Bound cos(const Bound& x) { return function_value(std::cos(x.v), 1.0, x.e); }
Bound pow(const Bound& x, const Bound& y) { return exp(y * log(x)); }
Bound abs(const Bound& x) { return {std::abs(x.v), x.e}; }
Bound relu(const Bound& x) { return clamp_below(x, 0.0); }

Bound clamp_above(const Bound& x, double limit) {
  if (x.v - x.e >= limit) return limit;
  return {std::min(x.v, limit), x.e};
}

Bound clamp_below(const Bound& x, double limit) {
  if (x.v + x.e <= limit) return limit;
  return {std::max(x.v, limit), x.e};
}

Bound round_at(Point point, const Bound& x) {
  const double unit = format_at(point).unit;
  return unit == 0.0 ? x : stored(x.v, x.e, unit);
}
Bound round_compute(const Bound& x) { return stored(x.v, x.e, model().compute); }

Bound dot(const Bound* a, std::ptrdiff_t a_step, const Bound* b, std::ptrdiff_t b_step, std::ptrdiff_t n) {
  double value = 0.0, magnitude = 0.0, propagated = 0.0;
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const Bound& x = a[i * a_step];
    const Bound& y = b[i * b_step];
    value += x.v * y.v;
    magnitude += std::abs(x.v * y.v);
    propagated += std::abs(x.v) * y.e + x.e * std::abs(y.v) + x.e * y.e;
  }
  const double roundings = static_cast<double>(model().tree.depth(n) + 1) * model().compute;
  // The last term is this function's own double summation.
  return {value, (propagated + roundings * (magnitude + propagated) * (1.0 + 0x1p-10) +
                  static_cast<double>(n) * (0x1p-53 * magnitude + model().tiny)) *
                     kInflation};
}

}  // namespace assay::reference
