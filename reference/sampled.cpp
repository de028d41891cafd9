#include "reference/sampled.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "cases/error.h"

namespace assay::reference {
namespace {

double magnification(const RoundingModel& model) {
  return model.execution == Execution::kRandom && model.compute < 0x1p-40 ? 0x1p12 : 1.0;
}

/// Uniform in [-1, 1): the next number of a stream (splitmix64; the context's stream is set per row, so that the
/// numbers do not depend on the number of threads).
inline double random_part(std::uint64_t& stream) {
  std::uint64_t z = (stream += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return static_cast<double>(static_cast<std::int64_t>(z >> 11)) * 0x1p-52 - 1.0;
}

/// To nearest in a format; null: F64, what a double operation gives anyway.
inline double nearest(const Format* format, double value) {
  if (format == nullptr) return value;
  if (format == &fp32()) return static_cast<double>(static_cast<float>(value));
  return rounded(*format, value);
}

Sampled computed(double value) {
  Context& c = context();
  if (c.rounding.execution == Execution::kNearest) return {nearest(c.rounding.compute_format, value)};
  return {value + value * (c.rounding.compute * magnification(c.rounding)) * random_part(c.stream)};
}
Sampled function_value(double value) {
  Context& c = context();
  if (c.rounding.execution == Execution::kNearest) return {nearest(c.rounding.compute_format, value)};
  const double unit = 2.0 * c.rounding.function_ulps * c.rounding.compute * magnification(c.rounding);
  return {value + value * unit * random_part(c.stream)};
}

/// A number below `count` from the stream.
std::int64_t draw(std::uint64_t& stream, std::int64_t count) {
  const double part = 0.5 * (random_part(stream) + 1.0);
  return std::min(static_cast<std::int64_t>(part * static_cast<double>(count)), count - 1);
}

/// The terms of one dot, in an order and with a multiplication (fused or rounded) that the stream chooses.
class Terms {
 public:
  Terms(const Sampled* a, std::ptrdiff_t a_step, const Sampled* b, std::ptrdiff_t b_step, const Format* format,
        std::uint64_t& stream)
      : a_(a), b_(b), a_step_(a_step), b_step_(b_step), format_(format), stream_(stream) {
    fused_ = draw(stream_, 2) == 1;
  }

  /// Terms begin .. end - 1 in any order: visited at a random stride from a random start, in 1 to 16 partial sums.
  double any_order(std::int64_t begin, std::int64_t end) {
    const std::int64_t n = end - begin;
    if (n == 0) return 0.0;
    std::int64_t stride = 1 + draw(stream_, n);
    while (std::gcd(stride, n) != 1) stride = stride % n + 1;
    std::array<double, kMostLanes> lane{};
    const std::int64_t lanes = std::int64_t{1} << draw(stream_, 5);
    std::int64_t at = draw(stream_, n);
    for (std::int64_t i = 0; i < n; ++i, at = (at + stride) % n) {
      double& sum = lane[static_cast<std::size_t>(i % lanes)];
      sum = add(sum, begin + at);
    }
    double total = lane[0];
    for (std::int64_t l = 1; l < lanes; ++l) total = nearest(format_, total + lane[static_cast<std::size_t>(l)]);
    return total;
  }

  double pairwise(std::int64_t begin, std::int64_t end) {
    if (end - begin <= 1) return end == begin ? 0.0 : add(0.0, begin);
    const std::int64_t middle = begin + (end - begin) / 2;
    return nearest(format_, pairwise(begin, middle) + pairwise(middle, end));
  }

  double blocks(std::int64_t n, std::int64_t block) {
    double total = 0.0;
    for (std::int64_t begin = 0; begin < n; begin += block)
      total = nearest(format_, total + any_order(begin, std::min(begin + block, n)));
    return total;
  }

 private:
  static constexpr std::size_t kMostLanes = 16;

  double add(double sum, std::int64_t i) const {
    const double x = a_[i * a_step_].v, y = b_[i * b_step_].v;
    return nearest(format_, fused_ ? std::fma(x, y, sum) : sum + nearest(format_, x * y));
  }

  const Sampled *a_, *b_;
  std::ptrdiff_t a_step_, b_step_;
  const Format* format_;
  std::uint64_t& stream_;
  bool fused_;
};

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
Sampled round_at(Point point, const Sampled& x) {
  Context& c = context();
  const PointFormat rounding = format_at(point);
  if (rounding.unit == 0.0) return x;
  if (c.rounding.execution == Execution::kNearest) {
    ASSAY_CHECK(c.rounding.points != nullptr);  // without a contract the format is not known
    return {nearest(rounding.format, x.v)};
  }
  return {x.v + x.v * (rounding.unit * magnification(c.rounding)) * random_part(c.stream)};
}
Sampled round_compute(const Sampled& x) { return computed(x.v); }

Sampled dot(const Sampled* a, std::ptrdiff_t a_step, const Sampled* b, std::ptrdiff_t b_step, std::ptrdiff_t n) {
  // The operators' arithmetic, with the stream in a register: nearly all the time of an ensemble is spent here.
  Context& c = context();
  if (c.rounding.execution == Execution::kNearest) {
    Terms terms(a, a_step, b, b_step, c.rounding.compute_format, c.stream);
    switch (c.rounding.tree.kind) {
      case SumTree::Kind::kAny:
        return {terms.any_order(0, n)};
      case SumTree::Kind::kBlocks:
        return {terms.blocks(n, c.rounding.tree.block)};
      case SumTree::Kind::kPairwise:
        return {terms.pairwise(0, n)};
    }
  }
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
