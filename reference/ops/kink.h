// Derivatives at kinks: what a mask means when an operand is only known to lie near the kink.
#pragma once

#include <algorithm>
#include <cmath>

#include "reference/scalar.h"

namespace assay::reference {

/// `value`, widened until it also holds `other`: for operands that may lie on either side of a kink. Scalars without a
/// radius keep `value`.
template <class T>
T either(const T& value, const T& /*other*/) {
  return value;
}
inline Ball either(const Ball& value, const Ball& other) {
  Ball hull;
  arb_union(hull.data(), value.data(), other.data(), context().bits);
  return hull;
}
inline Bound either(const Bound& value, const Bound& other) {
  return {value.v, std::max(value.e, std::abs(value.v - other.v) + other.e)};
}

/// Every value of x is above / at most the limit. Both are false for a Ball or Bound that straddles it.
template <class T>
bool surely_above(const T& x, double limit) {
  return x > limit;
}
template <class T>
bool surely_at_most(const T& x, double limit) {
  return x <= limit;
}
inline bool surely_above(const Ball& x, double limit) { return arb_gt(x.data(), Ball(limit).data()) != 0; }
inline bool surely_at_most(const Ball& x, double limit) { return arb_le(x.data(), Ball(limit).data()) != 0; }
inline bool surely_above(const Bound& x, double limit) { return x.v - x.e > limit; }
inline bool surely_at_most(const Bound& x, double limit) { return x.v + x.e <= limit; }
inline bool surely_above(const Sampled& x, double limit) { return x.v > limit; }
inline bool surely_at_most(const Sampled& x, double limit) { return x.v <= limit; }

/// `gradient` where x <= limit, 0 above; both where that is uncertain.
template <class T>
T where_at_most(const T& x, double limit, const T& gradient) {
  if (surely_above(x, limit)) return T(0.0);
  if (surely_at_most(x, limit)) return gradient;
  return midpoint(x) <= limit ? either(gradient, T(0.0)) : either(T(0.0), gradient);
}

}  // namespace assay::reference
