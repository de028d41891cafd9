#include "cases/formats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cases/error.h"

namespace assay {
namespace {

constexpr int kDoubleMantissaBits = 52;
constexpr int kDoubleBias = 1023;
constexpr std::uint64_t kDoubleHiddenBit = std::uint64_t{1} << kDoubleMantissaBits;

//                              exponent bits, mantissa bits, bias, sign, infinity, subnormals, max, min, roundoff
constexpr Format kBF16Format{"bf16", 8, 7, 127, true, true, true, 0x1.fep127, 0x1p-133, 0x1p-8};
constexpr Format kFP16Format{"fp16", 5, 10, 15, true, true, true, 65504.0, 0x1p-24, 0x1p-11};
constexpr Format kTF32Format{"tf32", 8, 10, 127, true, true, true, 0x1.ffcp127, 0x1p-136, 0x1p-11};
constexpr Format kFP32Format{"fp32", 8, 23, 127, true, true, true, 0x1.fffffep127, 0x1p-149, 0x1p-24};
constexpr Format kE4M3Format{"e4m3", 4, 3, 7, true, false, true, 448.0, 0x1p-9, 0x1p-4};
constexpr Format kE5M2Format{"e5m2", 5, 2, 15, true, true, true, 57344.0, 0x1p-16, 0x1p-3};
constexpr Format kUE8M0Format{"ue8m0", 8, 0, 127, false, false, false, 0x1p127, 0x1p-127, 0x1p-1};

std::uint32_t sign_bit(const Format& format) {
  return format.has_sign ? std::uint32_t{1} << (format.exponent_bits + format.mantissa_bits) : 0;
}

/// All ones in the exponent field.
std::uint32_t top_exponent(const Format& format) {
  return ((std::uint32_t{1} << format.exponent_bits) - 1) << format.mantissa_bits;
}

std::uint32_t mantissa_mask(const Format& format) { return (std::uint32_t{1} << format.mantissa_bits) - 1; }

std::uint32_t infinity_code(const Format& format) { return top_exponent(format); }

/// The positive quiet NaN: all ones without infinity, else the leading mantissa bit.
std::uint32_t nan_code(const Format& format) {
  if (!format.has_infinity) return top_exponent(format) | mantissa_mask(format);
  return top_exponent(format) | std::uint32_t{1} << (format.mantissa_bits - 1);
}

std::uint32_t max_finite_code(const Format& format) {
  return (format.has_infinity ? infinity_code(format) : nan_code(format)) - 1;
}

bool is_nan_code(const Format& format, std::uint32_t magnitude) {
  return format.has_infinity ? magnitude > infinity_code(format) : magnitude == nan_code(format);
}

/// How far a value lies above the representable value below it, in parts of the gap.
enum class Rest { kNone, kBelowHalf, kHalf, kAboveHalf };

/// Codes of one sign count their values in order, so `code` is also the position of the value; it is -1 below the
/// smallest value of a format without zero, and exceeds max_finite_code beyond the largest.
struct Truncated {
  std::int64_t code;
  Rest rest;
};

/// `magnitude`, finite and not negative, rounded towards zero as if the exponent field had no upper end.
Truncated truncate(const Format& format, double magnitude) {
  const auto bits = std::bit_cast<std::uint64_t>(magnitude);
  if (bits == 0) return format.has_subnormals ? Truncated{0, Rest::kNone} : Truncated{-1, Rest::kAboveHalf};

  // magnitude = significand * 2^(exponent - 52), the significand in [2^52, 2^53).
  std::uint64_t significand = bits & (kDoubleHiddenBit - 1);
  int exponent = static_cast<int>(bits >> kDoubleMantissaBits) - kDoubleBias;
  if (exponent == -kDoubleBias) {
    const int shift = std::countl_zero(significand) - (63 - kDoubleMantissaBits);
    significand <<= shift;
    exponent = 1 - kDoubleBias - shift;
  } else {
    significand |= kDoubleHiddenBit;
  }

  if (!format.has_subnormals && exponent < -format.bias) return {-1, Rest::kAboveHalf};
  const int least_exponent = format.has_subnormals ? 1 - format.bias : -format.bias;
  const int used_exponent = std::max(exponent, least_exponent);
  const int dropped_bits = kDoubleMantissaBits - format.mantissa_bits + (used_exponent - exponent);
  if (dropped_bits > kDoubleMantissaBits + 1) return {0, Rest::kBelowHalf};

  const std::uint64_t kept = significand >> dropped_bits;
  const std::uint64_t dropped = significand - (kept << dropped_bits);
  const std::uint64_t half = std::uint64_t{1} << (dropped_bits - 1);
  // `kept` carries its hidden bit into the exponent field, hence the -1; a subnormal has no hidden bit and field 0.
  const std::int64_t code =
      static_cast<std::int64_t>(used_exponent + format.bias - 1) * (std::int64_t{1} << format.mantissa_bits) +
      static_cast<std::int64_t>(kept);
  if (dropped == 0) return {code, Rest::kNone};
  return {code, dropped < half ? Rest::kBelowHalf : dropped == half ? Rest::kHalf : Rest::kAboveHalf};
}

/// Position of the largest representable value <= `value` in the order of all of them (0 is code 0); one step
/// outside the finite ones when there is none.
std::int64_t position_below(const Format& format, double value);

/// Position of the smallest representable value >= `value`.
std::int64_t position_above(const Format& format, double value) {
  if (format.has_sign && value < 0) return -position_below(format, -value);
  if (!format.has_sign && value <= 0) return 0;
  const Truncated truncated = truncate(format, std::fabs(value));
  const std::int64_t position = truncated.code + (truncated.rest == Rest::kNone ? 0 : 1);
  return std::min<std::int64_t>(position, std::int64_t{max_finite_code(format)} + 1);
}

std::int64_t position_below(const Format& format, double value) {
  if (format.has_sign && value < 0) return -position_above(format, -value);
  if (!format.has_sign && value <= 0) return -1;
  return std::min<std::int64_t>(truncate(format, std::fabs(value)).code, max_finite_code(format));
}

}  // namespace

const Format& bf16() { return kBF16Format; }
const Format& fp16() { return kFP16Format; }
const Format& tf32() { return kTF32Format; }
const Format& fp32() { return kFP32Format; }
const Format& e4m3() { return kE4M3Format; }
const Format& e5m2() { return kE5M2Format; }
const Format& ue8m0() { return kUE8M0Format; }

const std::vector<const Format*>& formats() {
  static const std::vector<const Format*> all{&kBF16Format, &kFP16Format, &kTF32Format, &kFP32Format,
                                              &kE4M3Format, &kE5M2Format, &kUE8M0Format};
  return all;
}

const Format* format_of(DType dtype) {
  switch (dtype) {
    case DType::kE4M3:
      return &kE4M3Format;
    case DType::kE5M2:
      return &kE5M2Format;
    case DType::kUE8M0:
      return &kUE8M0Format;
    case DType::kBF16:
      return &kBF16Format;
    case DType::kF16:
      return &kFP16Format;
    case DType::kF32:
      return &kFP32Format;
    case DType::kF64:
      return nullptr;
    default:
      break;
  }
  ASSAY_CHECK(is_real(dtype));
  return nullptr;
}

std::uint32_t encode(const Format& format, double value, Overflow overflow) {
  const std::uint32_t sign = std::signbit(value) ? sign_bit(format) : 0;
  if (std::isnan(value)) return nan_code(format) | sign;
  if (!format.has_sign && (std::signbit(value) || value == 0))
    return overflow == Overflow::kSaturate ? 0 : nan_code(format);

  const std::uint32_t beyond = overflow == Overflow::kSaturate ? max_finite_code(format)
                               : format.has_infinity           ? infinity_code(format)
                                                               : nan_code(format);
  if (std::isinf(value)) return beyond | sign;

  const Truncated truncated = truncate(format, std::fabs(value));
  const bool odd = (truncated.code & 1) != 0;
  const bool up = truncated.rest == Rest::kAboveHalf || (truncated.rest == Rest::kHalf && odd);
  const std::int64_t code = truncated.code + (up ? 1 : 0);
  if (code > max_finite_code(format)) return beyond | sign;
  return static_cast<std::uint32_t>(code) | sign;
}

double decode(const Format& format, std::uint32_t code) {
  const std::uint32_t sign = code & sign_bit(format);
  const std::uint32_t magnitude = code ^ sign;
  ASSAY_CHECK(magnitude <= (top_exponent(format) | mantissa_mask(format)));
  if (is_nan_code(format, magnitude))
    return std::copysign(std::numeric_limits<double>::quiet_NaN(), sign != 0 ? -1.0 : 1.0);
  if (format.has_infinity && magnitude == infinity_code(format))
    return sign != 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();

  const std::uint32_t exponent_field = magnitude >> format.mantissa_bits;
  const std::uint32_t mantissa = magnitude & mantissa_mask(format);
  double value = 0;
  if (format.has_subnormals && exponent_field == 0) {
    value = mantissa * format.min_positive;
  } else {
    const auto exponent = static_cast<std::uint64_t>(static_cast<int>(exponent_field) - format.bias + kDoubleBias);
    value = std::bit_cast<double>(exponent << kDoubleMantissaBits |
                                  std::uint64_t{mantissa} << (kDoubleMantissaBits - format.mantissa_bits));
  }
  return sign != 0 ? -value : value;
}

double rounded(const Format& format, double value, Overflow overflow) {
  return decode(format, encode(format, value, overflow));
}

std::int64_t ulp_distance(const Format& format, double a, double b) {
  ASSAY_CHECK(std::isfinite(a) && std::isfinite(b));
  if (a == b) return 0;
  return position_above(format, std::max(a, b)) - position_below(format, std::min(a, b));
}

}  // namespace assay
