#include "reference/linear_algebra_plan.h"

#include <gmp.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "cases/error.h"
#include "reference/linear_algebra_kernel.h"

namespace assay::reference {
namespace {

using u64 = std::uint64_t;

/// The largest primes below 2^23, descending.
const std::vector<u64>& primes() {
  static const std::vector<u64> list = [] {
    std::vector<u64> found;
    for (u64 n = (u64{1} << kDigitBits) - 1; found.size() < kMostPrimes; n -= 2) {
      bool prime = true;
      for (u64 d = 3; prime && d * d <= n; d += 2) prime = n % d != 0;
      if (prime) found.push_back(n);
    }
    return found;
  }();
  return list;
}

u64 power_modulo(u64 base, u64 exponent, u64 p) {
  u64 result = 1;
  for (; exponent > 0; exponent /= 2, base = base * base % p)
    if (exponent % 2 == 1) result = result * base % p;
  return result;
}

/// The residue of least magnitude.
double centred(u64 residue, u64 p) {
  return residue > p / 2 ? -static_cast<double>(p - residue) : static_cast<double>(residue);
}

/// A GMP integer that frees itself.
struct Integer {
  mpz_t value;
  Integer() { mpz_init(value); }
  ~Integer() { mpz_clear(value); }
  Integer(const Integer&) = delete;
  Integer& operator=(const Integer&) = delete;
};

}  // namespace

int primes_for(int bits) {
  double sum = 0.0;
  for (int i = 0; i < kMostPrimes; ++i) {
    sum += std::log2(static_cast<double>(primes()[static_cast<std::size_t>(i)]));
    if (sum > bits + 0.01) return i + 1;
  }
  return 0;
}

ResiduePlan make_plan(int operand_bits, int product_bits, int error_bits) {
  ResiduePlan plan;
  plan.primes = primes_for(product_bits + 2);
  ASSAY_CHECK(plan.primes > 0);
  plan.digits = (operand_bits + kDigitBits - 1) / kDigitBits;
  plan.dropped_bits =
      std::max(0, error_bits - (kDigitBits - 1) - static_cast<int>(std::bit_width(static_cast<u64>(plan.primes) + 1)));
  const std::int64_t rows = tile_kernel().rows;
  const std::int64_t prime_panels = (plan.primes + rows - 1) / rows;
  plan.moduli.assign(static_cast<std::size_t>(prime_panels * rows), 1.0);
  plan.inverses = plan.moduli;
  plan.digit_residues.assign(static_cast<std::size_t>(prime_panels * rows * plan.digits), 0.0);
  Integer product, part;
  mpz_set_ui(product.value, 1);
  for (int i = 0; i < plan.primes; ++i) {
    const u64 p = primes()[static_cast<std::size_t>(i)];
    mpz_mul_ui(product.value, product.value, p);
    plan.moduli[static_cast<std::size_t>(i)] = static_cast<double>(p);
    plan.inverses[static_cast<std::size_t>(i)] = 1.0 / static_cast<double>(p);
    u64 power = 1;
    for (int d = 0; d < plan.digits; ++d, power = (power << kDigitBits) % p)
      plan.digit_residues[static_cast<std::size_t>((i / rows * plan.digits + d) * rows + i % rows)] = centred(power, p);
  }

  const int total_bits = static_cast<int>(mpz_sizeinbase(product.value, 2));
  plan.result_digits = (total_bits - plan.dropped_bits + kDigitBits - 1) / kDigitBits;
  const std::int64_t digit_panels = (plan.result_digits + rows - 1) / rows, depth = plan.primes + 1;
  plan.result_weights.assign(static_cast<std::size_t>(digit_panels * depth * rows), 0.0);
  for (int i = 0; i <= plan.primes; ++i) {
    mpz_set(part.value, product.value);
    if (i < plan.primes) {
      const u64 p = primes()[static_cast<std::size_t>(i)];
      mpz_divexact_ui(part.value, part.value, p);
      plan.weights.push_back(centred(power_modulo(mpz_fdiv_ui(part.value, p), p - 2, p), p));
    }
    mpz_fdiv_q_2exp(part.value, part.value, static_cast<mp_bitcnt_t>(plan.dropped_bits));
    for (std::int64_t d = 0; d < plan.result_digits; ++d) {
      const double digit = static_cast<double>(mpz_fdiv_ui(part.value, 1UL << kDigitBits));
      plan.result_weights[static_cast<std::size_t>((d / rows * depth + i) * rows + d % rows)] =
          i < plan.primes ? digit : -digit;
      mpz_fdiv_q_2exp(part.value, part.value, kDigitBits);
    }
  }
  return plan;
}

}  // namespace assay::reference
