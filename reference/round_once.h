// Rounding a value of any scalar to a number format exactly once (cases/formats.h rounds doubles). A multiprecision
// value reaches the format through a double rounded to odd, so that the double does not round a second time: 53 bits
// are at least two more than every format keeps.
#pragma once

#include "cases/formats.h"
#include "reference/scalar.h"

namespace assay::reference {

/// What may be held after rounding: `value` comes from the midpoint, low <= value <= high from the ends of the
/// interval. Rounding is monotone, so low == high says that every value of the interval has the same code.
struct RoundedRange {
  double value = 0.0;
  double low = 0.0;
  double high = 0.0;

  bool certain() const { return low == high || value != value; }
};

/// double, Real and Sampled: the single rounding of the value, low == high. Bound: [v - e, v + e], what an
/// implementation may hold. Ball: throws Undecided (reference/decide.h) unless the whole ball rounds to one value; with
/// context().ties_are_final it returns the range instead. NaN stays NaN.
template <class T>
RoundedRange round_range(const Format& format, const T& x, Overflow overflow);

/// The rounded value alone: round_range(...).value.
template <class T>
double round_once(const Format& format, const T& x, Overflow overflow) {
  return round_range(format, x, overflow).value;
}

/// A range as a scalar: double, Real and Sampled its value, Ball a ball around all of it, Bound the value with the
/// distance to the farther end as error.
template <class T>
T from_range(const RoundedRange& range);

/// The rounding as a scalar: a Bound whose error cannot cross a rounding boundary has error 0 afterwards, otherwise it
/// grows by the steps of the format it can cross.
template <class T>
T rounded_to(const Format& format, const T& x, Overflow overflow) {
  return from_range<T>(round_range(format, x, overflow));
}

/// The double next to x towards zero, with its last bit set if x lies beyond it (round to odd).
double odd_double(const Real& x);
double odd_double(const arf_struct* x);

}  // namespace assay::reference
