// Number formats, and rounding to them.
//
// Every format is rounded to nearest, ties to even, ONCE. A value that is not a double (a multiprecision number) must
// first be brought to a double by rounding to odd with at least two bits more than the target keeps; the reference does
// so (`reference/round_once.h`), and the result is the single rounding of the original value.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cases/dtype.h"

namespace assay {

/// What happens to a finite value that rounds beyond the largest finite one.
enum class Overflow {
  kSaturate,  ///< becomes the largest finite value of its sign; infinities too
  kSpecial,   ///< becomes infinity, or NaN where the format has no infinity (e4m3, ue8m0)
};

/// A binary number format: sign, exponent field, mantissa field (hidden leading bit, subnormals unless stated).
struct Format {
  std::string_view name;  ///< bf16, fp16, tf32, fp32, e4m3, e5m2, ue8m0
  int exponent_bits;
  int mantissa_bits;  ///< stored bits, without the hidden one
  int bias;
  bool has_sign;         ///< ue8m0 has none
  bool has_infinity;     ///< e4m3 (fn) and ue8m0 have none
  bool has_subnormals;   ///< ue8m0 has none: code 0 is 2^-127
  double max_finite;     ///< 448 for e4m3, 57344 for e5m2, 2^127 for ue8m0
  double min_positive;   ///< smallest positive value
  double unit_roundoff;  ///< 2^-(mantissa_bits + 1)
};

const Format& bf16();
const Format& fp16();
const Format& tf32();  ///< 8 exponent bits, 10 mantissa bits; code = the 19 bits sign|exponent|mantissa
const Format& fp32();
const Format& e4m3();  ///< "fn": no infinity, 0x7F and 0xFF are the only NaN
const Format& e5m2();
const Format&
ue8m0();  ///< exponent only; 0xFF is NaN; zero and negative values have no code (NaN, or 2^-127 if saturating)

const std::vector<const Format*>& formats();

/// The format of a real dtype; F64 has none (nullptr).
const Format* format_of(DType dtype);

/// The code (bit pattern) of `value` rounded once to nearest even. NaN becomes the format's quiet NaN, with its sign
/// kept.
std::uint32_t encode(const Format& format, double value, Overflow overflow);

/// The exact value of a code; codes wider than the format are a broken invariant.
double decode(const Format& format, std::uint32_t code);

/// decode(encode(value)).
double rounded(const Format& format, double value, Overflow overflow = Overflow::kSpecial);

/// Number of representable values strictly between, plus one: 0 for equal values (+0 equals -0); both finite.
std::int64_t ulp_distance(const Format& format, double a, double b);

}  // namespace assay
