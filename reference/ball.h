// `Ball`: midpoint and radius (FLINT/Arb). The true value lies inside, whatever was rounded on the way.
// Operations work at context().bits.
#pragma once

#include <cstddef>
#include <string>

#include "reference/arb.h"
#include "reference/context.h"

namespace assay::reference {

class Ball {
 public:
  Ball() { arb_init(value_); }
  Ball(double exact_value) : Ball() { arb_set_d(value_, exact_value); }  // NOLINT: numbers widen exactly
  Ball(int exact_value) : Ball() { arb_set_si(value_, exact_value); }    // NOLINT
  Ball(const Ball& other) : Ball() { arb_set(value_, other.value_); }
  Ball(Ball&& other) noexcept : Ball() { arb_swap(value_, other.value_); }
  Ball& operator=(const Ball& other) {
    arb_set(value_, other.value_);
    return *this;
  }
  Ball& operator=(Ball&& other) noexcept {
    arb_swap(value_, other.value_);
    return *this;
  }
  ~Ball() { arb_clear(value_); }

  arb_struct* data() { return value_; }
  const arb_struct* data() const { return value_; }

  Ball& operator+=(const Ball& b);
  Ball& operator-=(const Ball& b);
  Ball& operator*=(const Ball& b);
  Ball& operator/=(const Ball& b);

 private:
  arb_t value_;
};

Ball operator+(const Ball& a, const Ball& b);
Ball operator-(const Ball& a, const Ball& b);
Ball operator*(const Ball& a, const Ball& b);
Ball operator/(const Ball& a, const Ball& b);
Ball operator-(const Ball& a);

inline Ball exact(double value, const Ball*) { return Ball(value); }
Ball exp(const Ball& x);
Ball log(const Ball& x);
Ball sqrt(const Ball& x);
Ball rsqrt(const Ball& x);
Ball sigmoid(const Ball& x);
Ball softplus(const Ball& x);
Ball erf(const Ball& x);
Ball sin(const Ball& x);
Ball cos(const Ball& x);
Ball pow(const Ball& x, const Ball& y);
Ball abs(const Ball& x);
Ball relu(const Ball& x);
Ball clamp_above(const Ball& x, double limit);
Ball clamp_below(const Ball& x, double limit);
double midpoint(const Ball& x);
/// An upper bound of the radius.
double radius(const Ball& x);
Ball round_at(Point point, const Ball& x);
inline Ball round_compute(const Ball& x) { return x; }

/// Bounds that surely hold: lower(x) <= every value of x <= upper(x), compared exactly.
bool certainly_less(const Ball& a, const Ball& b);
bool certainly_equal(const Ball& a, const Ball& b);  ///< both exact and equal
bool overlap(const Ball& a, const Ball& b);
bool contains(const Ball& a, double value);
/// Certified decimal digits of the midpoint, at most `digits`, as Arb prints them: "[1.2345 +/- 6e-7]" or "1.2345".
std::string to_string(const Ball& x, int digits);

Ball dot(const Ball* a, std::ptrdiff_t a_step, const Ball* b, std::ptrdiff_t b_step, std::ptrdiff_t n);

static_assert(sizeof(Ball) == sizeof(arb_struct), "arrays of Ball are arrays of arb_struct");

}  // namespace assay::reference
