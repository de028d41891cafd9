#include "reference/ops/fp8_accumulator.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

namespace assay::reference {
namespace {

constexpr std::int64_t kProductsAtOnce = 32;

/// 2^floor(log2 x), 0 for 0.
double leading_power(double x) { return x == 0.0 ? 0.0 : std::exp2(std::logb(x)); }

/// The exponent a tensor core gives to a code, as a power of two: subnormals have that of the smallest normal number,
/// 2^-6 for e4m3. E5m2's is 2^-14: what is taken here for its smallest codes is too large, never too small.
double code_power(double magnitude) { return std::max(leading_power(magnitude), 0x1p-6); }

/// x without what lies below `unit`, a power of two; all of x among zeros, infinities and NaN.
double cut(double x, double unit) { return unit > 0.0 && std::isfinite(unit) ? std::trunc(x / unit) * unit : x; }

/// Error of any sum that aligns 33 terms and cuts, rounds or keeps what lies below.
double tensor_core_error(const Bound* x, const Bound* w, std::int64_t n, std::int64_t fraction_bits) {
  const double last_bit = std::exp2(-static_cast<double>(fraction_bits));
  double value = 0.0, error = 0.0;
  for (std::int64_t first = 0; first < n; first += kProductsAtOnce) {
    double largest = leading_power(std::abs(value) + error), terms = value == 0.0 && error == 0.0 ? 0.0 : 1.0;
    for (std::int64_t i = first; i < std::min(n, first + kProductsAtOnce); ++i) {
      const double product = x[i].v * w[i].v;
      if (product == 0.0) continue;
      largest = std::max(largest, code_power(std::abs(x[i].v) + x[i].e) * code_power(std::abs(w[i].v) + w[i].e));
      terms += 1.0;
      value += product;
    }
    error += terms * largest * last_bit;
    error += leading_power(std::abs(value) + error) * last_bit;
  }
  return error;
}

}  // namespace

double tensor_core_sum(const double* x, const double* w, std::int64_t n, std::int64_t fraction_bits) {
  const double last_bit = std::exp2(-static_cast<double>(fraction_bits));
  double sum = 0.0;
  for (std::int64_t first = 0; first < n; first += kProductsAtOnce) {
    const std::int64_t end = std::min(n, first + kProductsAtOnce);
    double largest = leading_power(std::abs(sum));
    for (std::int64_t i = first; i < end; ++i)
      if (x[i] * w[i] != 0.0) largest = std::max(largest, code_power(std::abs(x[i])) * code_power(std::abs(w[i])));
    double aligned = cut(sum, largest * last_bit);
    for (std::int64_t i = first; i < end; ++i) aligned += cut(x[i] * w[i], largest * last_bit);
    sum = cut(aligned, leading_power(std::abs(aligned)) * last_bit);
  }
  return sum;
}

template <class T>
T accumulated_dot(const T* x, const T* w, std::int64_t n, [[maybe_unused]] std::optional<std::int64_t> fraction_bits) {
  T sum = dot(x, 1, w, 1, n);
  if constexpr (std::is_same_v<T, Bound>) {
    if (fraction_bits) sum.e += tensor_core_error(x, w, n, *fraction_bits);
  }
  if constexpr (std::is_same_v<T, Sampled>) {
    if (!fraction_bits) return sum;
    std::vector<double> x_values, w_values;
    double exact_sum = 0.0;
    for (std::int64_t i = 0; i < n; ++i) {
      x_values.push_back(x[i].v);
      w_values.push_back(w[i].v);
      exact_sum += x[i].v * w[i].v;
    }
    const double device = tensor_core_sum(x_values.data(), w_values.data(), n, *fraction_bits);
    sum.v = exact_sum + (device - exact_sum) * sampling_magnification();
  }
  return sum;
}

#define ASSAY_INSTANTIATE(T) template T accumulated_dot(const T*, const T*, std::int64_t, std::optional<std::int64_t>);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
