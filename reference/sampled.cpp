#include "reference/sampled.h"

#include <cmath>

namespace assay::reference {
namespace {

double magnification(const RoundingModel& model) { return model.compute < 0x1p-40 ? 0x1p12 : 1.0; }

/// Uniform in [-1, 1): the next number of a stream (splitmix64; the context's stream is set per row, so that the
/// numbers do not depend on the number of threads).
inline double random_part(std::uint64_t& stream) {
  std::uint64_t z = (stream += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return static_cast<double>(static_cast<std::int64_t>(z >> 11)) * 0x1p-52 - 1.0;
}

Sampled computed(double value) {
  Context& c = context();
  return {value + value * (c.rounding.compute * magnification(c.rounding)) * random_part(c.stream)};
}
Sampled function_value(double value) {
  Context& c = context();
  const double unit = 2.0 * c.rounding.function_ulps * c.rounding.compute * magnification(c.rounding);
  return {value + value * unit * random_part(c.stream)};
}

}  // namespace

double sampling_magnification() { return magnification(context().rounding); }

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
Sampled round_activation(const Sampled& x) {
  Context& c = context();
  return {x.v + x.v * (c.rounding.activation * magnification(c.rounding)) * random_part(c.stream)};
}
Sampled round_compute(const Sampled& x) { return computed(x.v); }

Sampled dot(const Sampled* a, std::ptrdiff_t a_step, const Sampled* b, std::ptrdiff_t b_step, std::ptrdiff_t n) {
  // The operators' arithmetic, with the stream in a register: nearly all the time of an ensemble is spent here.
  Context& c = context();
  const double unit = c.rounding.compute * magnification(c.rounding);
  std::uint64_t stream = c.stream;
  double sum = 0.0;
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const double product = a[i * a_step].v * b[i * b_step].v;
    const double disturbed = product + product * (unit * random_part(stream));
    const double next = sum + disturbed;
    sum = next + next * (unit * random_part(stream));
  }
  c.stream = stream;
  return {sum};
}

}  // namespace assay::reference
