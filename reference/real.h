// `Real`: a multiprecision number (Boost.Multiprecision over MPFR), round to nearest, precision chosen at run time.
#pragma once

#include <boost/multiprecision/mpfr.hpp>
#include <boost/version.hpp>

#include "cases/rounding_points.h"

namespace assay::reference {

using Real = boost::multiprecision::number<boost::multiprecision::mpfr_float_backend<0>, boost::multiprecision::et_off>;

/// The precision of new Reals on this thread, in decimal digits. Boost 1.78 gave every thread a precision of its own;
/// before, all threads share one (a ContextScope for Real must not be opened inside a parallel_for).
inline unsigned real_digits() {
#if BOOST_VERSION >= 107800
  return Real::thread_default_precision();
#else
  return Real::default_precision();
#endif
}
inline void set_real_digits(unsigned digits) {
#if BOOST_VERSION >= 107800
  Real::thread_default_precision(digits);
#else
  Real::default_precision(digits);
#endif
}

/// Decimal digits that give Boost's backend at least `bits` bits.
unsigned decimal_digits(int bits);

inline Real exact(double value, const Real*) { return Real(value); }
Real sigmoid(const Real& x);
Real softplus(const Real& x);
Real rsqrt(const Real& x);
Real erf(const Real& x);
inline Real relu(const Real& x) { return x > 0 ? x : Real(0); }
inline Real clamp_above(const Real& x, double limit) { return x > limit ? Real(limit) : x; }
inline Real clamp_below(const Real& x, double limit) { return x < limit ? Real(limit) : x; }
inline double midpoint(const Real& x) { return x.convert_to<double>(); }
inline double radius(const Real&) { return 0.0; }
Real round_at(Point point, const Real& x);
inline Real round_compute(const Real& x) { return x; }

/// sum of a[i*a_step] * b[i*b_step] over i < n.
Real dot(const Real* a, std::ptrdiff_t a_step, const Real* b, std::ptrdiff_t b_step, std::ptrdiff_t n);

}  // namespace assay::reference
