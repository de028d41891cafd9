#include "reference/round_once.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "reference/decide.h"

namespace assay::reference {
namespace {

/// An arf_t with a destructor.
struct Endpoint {
  arf_t value;
  Endpoint() { arf_init(value); }
  ~Endpoint() { arf_clear(value); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
};

/// Bits kept of an end of a ball beyond the working precision; the end moves outwards.
constexpr int kEndpointGuardBits = 64;

double with_sticky_bit(double towards_zero) {
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(towards_zero) | 1U);
}

RoundedRange point(double value) { return {value, value, value}; }

RoundedRange range_of(const Format& format, double x, Overflow overflow) { return point(rounded(format, x, overflow)); }

RoundedRange range_of(const Format& format, const Sampled& x, Overflow overflow) {
  return point(rounded(format, x.v, overflow));
}

RoundedRange range_of(const Format& format, const Real& x, Overflow overflow) {
  return point(rounded(format, odd_double(x), overflow));
}

RoundedRange range_of(const Format& format, const Bound& x, Overflow overflow) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double value = rounded(format, x.v, overflow);
  if (x.e == 0.0) return point(value);
  return {value, rounded(format, std::nextafter(x.v - x.e, -kInfinity), overflow),
          rounded(format, std::nextafter(x.v + x.e, kInfinity), overflow)};
}

RoundedRange range_of(const Format& format, const Ball& x, Overflow overflow) {
  const double value = rounded(format, odd_double(arb_midref(x.data())), overflow);
  if (arb_is_exact(x.data())) return point(value);
  RoundedRange range{value, value, value};
  Endpoint end;
  const slong precision = context().bits + kEndpointGuardBits;
  arb_get_lbound_arf(end.value, x.data(), precision);
  range.low = rounded(format, odd_double(end.value), overflow);
  arb_get_ubound_arf(end.value, x.data(), precision);
  range.high = rounded(format, odd_double(end.value), overflow);
  if (!(range.low == range.high) && !context().ties_are_final) throw Undecided();
  return range;
}

double make(const RoundedRange& range, const double*) { return range.value; }
Real make(const RoundedRange& range, const Real*) { return Real(range.value); }
Sampled make(const RoundedRange& range, const Sampled*) { return Sampled(range.value); }

Bound make(const RoundedRange& range, const Bound*) {
  if (range.certain()) return Bound(range.value);
  const double e = std::max(range.high - range.value, range.value - range.low);
  return {range.value, e >= 0.0 ? e : std::numeric_limits<double>::infinity()};
}

Ball make(const RoundedRange& range, const Ball*) {
  if (range.certain()) return Ball(range.value);
  Ball result;
  const Ball low(range.low), high(range.high);
  arb_union(result.data(), low.data(), high.data(), context().bits);
  return result;
}

}  // namespace

double odd_double(const Real& x) {
  const double value = mpfr_get_d(x.backend().data(), MPFR_RNDZ);
  if (std::isnan(value) || mpfr_cmp_d(x.backend().data(), value) == 0) return value;
  return with_sticky_bit(value);
}

double odd_double(const arf_struct* x) {
  if (arf_is_nan(x)) return std::numeric_limits<double>::quiet_NaN();
  double value = arf_get_d(x, ARF_RND_DOWN);
  if (arf_cmp_d(x, value) == 0) return value;
  // Arb gives +0 for a negative value below every double.
  if (value == 0.0) value = std::copysign(value, static_cast<double>(arf_sgn(x)));
  return with_sticky_bit(value);
}

template <class T>
RoundedRange round_range(const Format& format, const T& x, Overflow overflow) {
  return range_of(format, x, overflow);
}

template <class T>
T from_range(const RoundedRange& range) {
  return make(range, static_cast<const T*>(nullptr));
}

#define ASSAY_INSTANTIATE(T)                                            \
  template RoundedRange round_range(const Format&, const T&, Overflow); \
  template T from_range(const RoundedRange&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
