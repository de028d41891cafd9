#include "harness/decimal.h"

#include <algorithm>

#include <fmt/format.h>
#include <mpfr.h>

namespace assay::harness {
namespace {

using reference::Ball;

/// An MPFR number for the time of a call.
class Number {
 public:
  explicit Number(mpfr_prec_t bits) { mpfr_init2(value_, bits); }
  ~Number() { mpfr_clear(value_); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  mpfr_t& get() { return value_; }

 private:
  mpfr_t value_;
};

/// A number as 0.<digits> * 10^exponent; digits of zero are all zero.
struct Decimal {
  bool negative = false;
  std::string digits;
  mpfr_exp_t exponent = 0;

  bool operator==(const Decimal&) const = default;
};

Decimal rounded_to(const mpfr_t& value, int digits) {
  mpfr_exp_t exponent = 0;
  char* text = mpfr_get_str(nullptr, &exponent, 10, static_cast<std::size_t>(digits), value, MPFR_RNDN);
  const bool negative = *text == '-';
  Decimal decimal{negative, text + (negative ? 1 : 0), exponent};
  mpfr_free_str(text);
  return decimal;
}

/// True if the decimal is the value itself.
bool is_exact(const Decimal& decimal, const mpfr_t& value) {
  // The nearest number with so many more bits than the value has is the value only if the decimal is.
  const std::string text = fmt::format("{}0.{}e{}", decimal.negative ? "-" : "", decimal.digits, decimal.exponent);
  Number back(mpfr_get_prec(value) + static_cast<mpfr_prec_t>(4 * decimal.digits.size()) + 64);
  return mpfr_strtofr(back.get(), text.c_str(), nullptr, 10, MPFR_RNDN) == 0 && mpfr_equal_p(back.get(), value) != 0;
}

/// Decimal point where it is easy to read, else an exponent.
std::string written(const Decimal& decimal) {
  constexpr mpfr_exp_t kLeastPlain = -5, kMostPlain = 21;  // of 0.ddd * 10^exponent
  const std::string sign = decimal.negative ? "-" : "";
  const auto count = static_cast<mpfr_exp_t>(decimal.digits.size());
  if (decimal.exponent > kLeastPlain && decimal.exponent <= 0) {
    return sign + "0." + std::string(static_cast<std::size_t>(-decimal.exponent), '0') + decimal.digits;
  }
  if (decimal.exponent > 0 && decimal.exponent <= std::max(count, mpfr_exp_t{1}) && decimal.exponent <= kMostPlain) {
    const auto whole = static_cast<std::size_t>(decimal.exponent);
    return sign + decimal.digits.substr(0, whole) +
           (whole < decimal.digits.size() ? "." + decimal.digits.substr(whole) : "");
  }
  return sign + decimal.digits.substr(0, 1) + (count > 1 ? "." + decimal.digits.substr(1) : "") +
         fmt::format("e{}", decimal.exponent - 1);
}

/// A point with its digits: without zeros at the end where all of it is shown.
std::string written_point(Decimal decimal, const mpfr_t& value) {
  if (!is_exact(decimal, value)) return written(decimal);
  decimal.digits.erase(decimal.digits.find_last_not_of('0') + 1);
  // Integers keep the zeros before the point.
  constexpr mpfr_exp_t kMostPadded = 21;
  if (decimal.exponent > 0 && decimal.exponent <= kMostPadded) {
    decimal.digits.resize(std::max(decimal.digits.size(), static_cast<std::size_t>(decimal.exponent)), '0');
  }
  return written(decimal);
}

}  // namespace

std::optional<std::string> to_decimal(const Ball& x, int digits) {
  const bool point = mag_is_zero(arb_radref(x.data())) != 0;
  if (arf_is_special(arb_midref(x.data())) != 0) {
    if (!point) return std::nullopt;
    if (arf_is_zero(arb_midref(x.data())) != 0) return "0";
    if (arf_is_nan(arb_midref(x.data())) != 0) return "nan";
    return arf_sgn(arb_midref(x.data())) > 0 ? "inf" : "-inf";
  }
  // Enough for the midpoint; the ends are rounded outwards.
  constexpr slong kGuardBits = 64;
  const slong bits = arb_bits(x.data()) + kGuardBits;
  Number low(bits);
  Number high(bits);
  arb_get_interval_mpfr(low.get(), high.get(), x.data());
  if (mpfr_regular_p(low.get()) == 0 || mpfr_regular_p(high.get()) == 0) return std::nullopt;
  const Decimal decimal = rounded_to(low.get(), digits);
  if (point) return written_point(decimal, low.get());
  if (rounded_to(high.get(), digits) != decimal) return std::nullopt;
  return written(decimal);
}

}  // namespace assay::harness
