#include "reference/real.h"

namespace assay::reference {

unsigned decimal_digits(int bits) {
  // Boost turns digits10 into digits10 * 1000 / 301 + 2 bits (or 3.33 bits a digit): one digit more is always enough.
  return static_cast<unsigned>(bits) * 301U / 1000U + 2U;
}

Real sigmoid(const Real& x) { return 1 / (1 + exp(-x)); }

Real softplus(const Real& x) { return x > 0 ? Real(x + log1p(exp(-x))) : Real(log1p(exp(x))); }

Real rsqrt(const Real& x) {
  Real result;
  mpfr_rec_sqrt(result.backend().data(), x.backend().data(), MPFR_RNDN);
  return result;
}

Real erf(const Real& x) {
  Real result;
  mpfr_erf(result.backend().data(), x.backend().data(), MPFR_RNDN);
  return result;
}

Real dot(const Real* a, std::ptrdiff_t a_step, const Real* b, std::ptrdiff_t b_step, std::ptrdiff_t n) {
  Real sum(0);
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    mpfr_fma(sum.backend().data(), a[i * a_step].backend().data(), b[i * b_step].backend().data(), sum.backend().data(),
             MPFR_RNDN);
  }
  return sum;
}

}  // namespace assay::reference
