#include "reference/ball.h"

namespace assay::reference {
namespace {

slong bits() { return context().bits; }

}  // namespace

Ball& Ball::operator+=(const Ball& b) {
  arb_add(value_, value_, b.value_, bits());
  return *this;
}
Ball& Ball::operator-=(const Ball& b) {
  arb_sub(value_, value_, b.value_, bits());
  return *this;
}
Ball& Ball::operator*=(const Ball& b) {
  arb_mul(value_, value_, b.value_, bits());
  return *this;
}
Ball& Ball::operator/=(const Ball& b) {
  arb_div(value_, value_, b.value_, bits());
  return *this;
}

Ball operator+(const Ball& a, const Ball& b) {
  Ball r;
  arb_add(r.data(), a.data(), b.data(), bits());
  return r;
}
Ball operator-(const Ball& a, const Ball& b) {
  Ball r;
  arb_sub(r.data(), a.data(), b.data(), bits());
  return r;
}
Ball operator*(const Ball& a, const Ball& b) {
  Ball r;
  arb_mul(r.data(), a.data(), b.data(), bits());
  return r;
}
Ball operator/(const Ball& a, const Ball& b) {
  Ball r;
  arb_div(r.data(), a.data(), b.data(), bits());
  return r;
}
Ball operator-(const Ball& a) {
  Ball r;
  arb_neg(r.data(), a.data());
  return r;
}

Ball exp(const Ball& x) {
  Ball r;
  arb_exp(r.data(), x.data(), bits());
  return r;
}
Ball log(const Ball& x) {
  Ball r;
  arb_log(r.data(), x.data(), bits());
  return r;
}
Ball sqrt(const Ball& x) {
  Ball r;
  arb_sqrt(r.data(), x.data(), bits());
  return r;
}
Ball rsqrt(const Ball& x) {
  Ball r;
  arb_rsqrt(r.data(), x.data(), bits());
  return r;
}

Ball sigmoid(const Ball& x) {
  // 1 / (1 + exp(-x)) evaluated once: x appears once, so the ball does not widen by dependency.
  Ball r;
  arb_neg(r.data(), x.data());
  arb_exp(r.data(), r.data(), bits());
  arb_add_ui(r.data(), r.data(), 1, bits());
  arb_inv(r.data(), r.data(), bits());
  return r;
}

Ball softplus(const Ball& x) {
  Ball r;
  const bool positive = arb_is_positive(x.data()) != 0;
  if (positive) {
    arb_neg(r.data(), x.data());
  } else {
    arb_set(r.data(), x.data());
  }
  arb_exp(r.data(), r.data(), bits());
  arb_log1p(r.data(), r.data(), bits());
  if (positive) arb_add(r.data(), r.data(), x.data(), bits());
  return r;
}

Ball erf(const Ball& x) {
  Ball r;
  arb_hypgeom_erf(r.data(), x.data(), bits());
  return r;
}
Ball sin(const Ball& x) {
  Ball r;
  arb_sin(r.data(), x.data(), bits());
  return r;
}
Ball cos(const Ball& x) {
  Ball r;
  arb_cos(r.data(), x.data(), bits());
  return r;
}
Ball pow(const Ball& x, const Ball& y) {
  Ball r;
  arb_pow(r.data(), x.data(), y.data(), bits());
  return r;
}
Ball abs(const Ball& x) {
  Ball r;
  arb_abs(r.data(), x.data());
  return r;
}

Ball relu(const Ball& x) { return clamp_below(x, 0.0); }

Ball clamp_above(const Ball& x, double limit) {
  const Ball bound(limit);
  if (certainly_less(x, bound)) return x;
  if (certainly_less(bound, x)) return bound;
  Ball r;
  arb_min(r.data(), x.data(), bound.data(), bits());
  return r;
}

Ball clamp_below(const Ball& x, double limit) {
  const Ball bound(limit);
  if (certainly_less(bound, x)) return x;
  if (certainly_less(x, bound)) return bound;
  Ball r;
  arb_max(r.data(), x.data(), bound.data(), bits());
  return r;
}

double midpoint(const Ball& x) { return arf_get_d(arb_midref(x.data()), ARF_RND_NEAR); }
double radius(const Ball& x) { return mag_get_d(arb_radref(x.data())); }

bool certainly_less(const Ball& a, const Ball& b) { return arb_lt(a.data(), b.data()) != 0; }
bool certainly_equal(const Ball& a, const Ball& b) { return arb_eq(a.data(), b.data()) != 0; }
bool overlap(const Ball& a, const Ball& b) { return arb_overlaps(a.data(), b.data()) != 0; }

bool contains(const Ball& a, double value) {
  const Ball point(value);
  return arb_contains(a.data(), point.data()) != 0;
}

std::string to_string(const Ball& x, int digits) {
  char* text = arb_get_str(x.data(), digits, 0);
  std::string result(text);
  flint_free(text);
  return result;
}

Ball dot(const Ball* a, std::ptrdiff_t a_step, const Ball* b, std::ptrdiff_t b_step, std::ptrdiff_t n) {
  Ball r;
  if (n > 0) arb_dot(r.data(), nullptr, 0, a->data(), a_step, b->data(), b_step, n, bits());
  return r;
}

}  // namespace assay::reference
