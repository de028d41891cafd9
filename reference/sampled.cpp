#include "reference/sampled.h"

#include <cmath>

namespace assay::reference {
namespace {

const RoundingModel& model() { return context().rounding; }

/// Uniform in [-1, 1): the next number of this thread's stream (splitmix64; the context's stream is set per row, so
/// that the numbers do not depend on the number of threads).
double random_part() {
  std::uint64_t z = (context().stream += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-52 - 1.0;
}

Sampled disturbed(double value, double unit) {
  return {value + value * unit * sampling_magnification() * random_part()};
}

Sampled computed(double value) { return disturbed(value, model().compute); }
Sampled function_value(double value) { return disturbed(value, 2.0 * model().function_ulps * model().compute); }

}  // namespace

double sampling_magnification() { return model().compute < 0x1p-40 ? 0x1p12 : 1.0; }

Sampled operator+(const Sampled& a, const Sampled& b) { return computed(a.v + b.v); }
Sampled operator-(const Sampled& a, const Sampled& b) { return computed(a.v - b.v); }
Sampled operator*(const Sampled& a, const Sampled& b) { return computed(a.v * b.v); }
Sampled operator/(const Sampled& a, const Sampled& b) { return computed(a.v / b.v); }
Sampled& Sampled::operator+=(const Sampled& b) { return *this = *this + b; }
Sampled& Sampled::operator-=(const Sampled& b) { return *this = *this - b; }
Sampled& Sampled::operator*=(const Sampled& b) { return *this = *this * b; }
Sampled& Sampled::operator/=(const Sampled& b) { return *this = *this / b; }

Sampled exact(double value, const Sampled*) { return computed(value); }
Sampled exp(const Sampled& x) { return function_value(std::exp(computed(x.v).v)); }
Sampled log(const Sampled& x) { return function_value(std::log(x.v)); }
Sampled sqrt(const Sampled& x) { return computed(std::sqrt(x.v)); }
Sampled rsqrt(const Sampled& x) { return function_value(1.0 / std::sqrt(x.v)); }
Sampled sigmoid(const Sampled& x) { return function_value(1.0 / (1.0 + std::exp(-computed(x.v).v))); }
Sampled softplus(const Sampled& x) {
  const double a = computed(x.v).v;
  return function_value(a > 0 ? a + std::log1p(std::exp(-a)) : std::log1p(std::exp(a)));
}
Sampled erf(const Sampled& x) { return function_value(std::erf(x.v)); }
Sampled sin(const Sampled& x) { return function_value(std::sin(x.v)); }
Sampled cos(const Sampled& x) { return function_value(std::cos(x.v)); }
Sampled pow(const Sampled& x, const Sampled& y) { return function_value(std::pow(x.v, y.v)); }
Sampled round_activation(const Sampled& x) { return disturbed(x.v, model().activation); }
Sampled round_compute(const Sampled& x) { return computed(x.v); }

Sampled dot(const Sampled* a, std::ptrdiff_t a_step, const Sampled* b, std::ptrdiff_t b_step, std::ptrdiff_t n) {
  Sampled sum;
  for (std::ptrdiff_t i = 0; i < n; ++i) sum = sum + a[i * a_step] * b[i * b_step];
  return sum;
}

}  // namespace assay::reference
