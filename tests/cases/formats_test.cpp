#include "cases/formats.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "cases/error.h"

namespace assay {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::uint32_t code_count(const Format& format) {
  return std::uint32_t{1} << (format.exponent_bits + format.mantissa_bits + (format.has_sign ? 1 : 0));
}

/// All codes of the formats that are small enough to be tested exhaustively.
std::vector<const Format*> small_formats() { return {&bf16(), &fp16(), &tf32(), &e4m3(), &e5m2(), &ue8m0()}; }

TEST(Formats, every_code_round_trips) {
  for (const Format* format : small_formats()) {
    std::uint32_t nans = 0;
    for (std::uint32_t code = 0; code < code_count(*format); ++code) {
      const double value = decode(*format, code);
      for (const Overflow overflow : {Overflow::kSaturate, Overflow::kSpecial}) {
        if (std::isnan(value)) {
          const double again = decode(*format, encode(*format, value, overflow));
          ASSERT_TRUE(std::isnan(again)) << format->name << " code " << code;
          ASSERT_EQ(std::signbit(again), std::signbit(value)) << format->name << " code " << code;
        } else if (!std::isinf(value) || overflow == Overflow::kSpecial) {
          ASSERT_EQ(encode(*format, value, overflow), code) << format->name;
        }
      }
      nans += std::isnan(value) ? 1 : 0;
    }
    // Per sign: all nonzero mantissas under the top exponent; without infinity one code only.
    const std::uint32_t expected = format->has_infinity ? 2 * ((1U << format->mantissa_bits) - 1)
                                   : format->has_sign   ? 2
                                                        : 1;
    EXPECT_EQ(nans, expected) << format->name;
  }
}

TEST(Formats, codes_of_one_sign_are_in_order_of_value) {
  for (const Format* format : small_formats())
    for (std::uint32_t code = 1; decode(*format, code) <= format->max_finite; ++code)
      ASSERT_LT(decode(*format, code - 1), decode(*format, code)) << format->name << " code " << code;
}

TEST(Formats, midpoints_go_to_even_and_their_neighbours_to_the_nearer_side) {
  for (const Format* format : small_formats()) {
    const std::uint32_t sign = format->has_sign ? code_count(*format) / 2 : 0;
    for (std::uint32_t code = 0; decode(*format, code) < format->max_finite; ++code) {
      const double low = decode(*format, code);
      const double high = decode(*format, code + 1);
      const double middle = low + (high - low) / 2;
      const std::uint32_t even = code + (code & 1);
      ASSERT_EQ(encode(*format, middle, Overflow::kSpecial), even) << format->name << " code " << code;
      ASSERT_EQ(encode(*format, std::nextafter(middle, low), Overflow::kSpecial), code) << format->name;
      ASSERT_EQ(encode(*format, std::nextafter(middle, high), Overflow::kSpecial), code + 1) << format->name;
      if (format->has_sign) {
        ASSERT_EQ(encode(*format, -middle, Overflow::kSpecial), even | sign) << format->name;
        ASSERT_EQ(encode(*format, -std::nextafter(middle, low), Overflow::kSpecial), code | sign) << format->name;
        ASSERT_EQ(encode(*format, -std::nextafter(middle, high), Overflow::kSpecial), (code + 1) | sign);
      }
    }
  }
}

TEST(Formats, the_table_agrees_with_the_codes) {
  for (const Format* format : formats()) {
    const std::uint32_t top = ((1U << format->exponent_bits) - 1) << format->mantissa_bits;
    const std::uint32_t max_code = format->has_infinity ? top - 1 : (top | ((1U << format->mantissa_bits) - 1)) - 1;
    EXPECT_EQ(decode(*format, max_code), format->max_finite) << format->name;
    EXPECT_EQ(decode(*format, format->has_subnormals ? 1 : 0), format->min_positive) << format->name;
    EXPECT_EQ(format->unit_roundoff, std::ldexp(1.0, -(format->mantissa_bits + 1))) << format->name;
  }
}

TEST(Formats, overflow_begins_half_a_gap_beyond_the_largest_finite_value) {
  for (const Format* format : formats()) {
    const double gap = std::ldexp(1.0, std::ilogb(format->max_finite) - format->mantissa_bits);
    const double edge = format->max_finite + gap / 2;
    const double under = std::nextafter(edge, 0.0);
    const double over = std::nextafter(edge, kInfinity);
    EXPECT_EQ(rounded(*format, under), format->max_finite) << format->name;
    EXPECT_EQ(rounded(*format, edge, Overflow::kSaturate), format->max_finite) << format->name;
    EXPECT_EQ(rounded(*format, over, Overflow::kSaturate), format->max_finite) << format->name;
    EXPECT_EQ(rounded(*format, kInfinity, Overflow::kSaturate), format->max_finite) << format->name;
    EXPECT_EQ(rounded(*format, std::numeric_limits<double>::max(), Overflow::kSaturate), format->max_finite);
    if (format->has_infinity) {
      EXPECT_EQ(rounded(*format, edge), kInfinity) << format->name;  // the largest code is odd
      EXPECT_EQ(rounded(*format, -over), -kInfinity) << format->name;
      EXPECT_EQ(rounded(*format, -kInfinity), -kInfinity) << format->name;
    } else {
      EXPECT_EQ(rounded(*format, edge), format->max_finite) << format->name;  // the largest code is even
      EXPECT_TRUE(std::isnan(rounded(*format, over))) << format->name;
      EXPECT_TRUE(std::isnan(rounded(*format, kInfinity))) << format->name;
    }
  }
}

// The numbers of the next tests: shared/cases/public_reports.md T66.
TEST(Formats, e4m3_rounds_448_449_464_to_448) {
  for (const double value : {448.0, 449.0, 464.0})
    for (const Overflow overflow : {Overflow::kSaturate, Overflow::kSpecial})
      EXPECT_EQ(rounded(e4m3(), value, overflow), 448.0) << value;
}

TEST(Formats, e4m3_saturates_or_becomes_nan_above_464) {
  for (const double value : {464.05, 465.0}) {
    EXPECT_EQ(rounded(e4m3(), value, Overflow::kSaturate), 448.0) << value;
    EXPECT_EQ(rounded(e4m3(), -value, Overflow::kSaturate), -448.0) << value;
    EXPECT_EQ(encode(e4m3(), value, Overflow::kSpecial), 0x7FU) << value;
    EXPECT_EQ(encode(e4m3(), -value, Overflow::kSpecial), 0xFFU) << value;
  }
}

TEST(Formats, e4m3_ties_go_to_even) {
  EXPECT_EQ(rounded(e4m3(), 17), 16);
  EXPECT_EQ(rounded(e4m3(), 19), 20);
  EXPECT_EQ(rounded(e4m3(), 232), 224);
  EXPECT_EQ(rounded(e4m3(), 272), 256);
}

TEST(Formats, e4m3_subnormal_ties_go_to_even) {
  EXPECT_EQ(rounded(e4m3(), 0x1p-10), 0.0);
  EXPECT_EQ(rounded(e4m3(), std::nextafter(0x1p-10, 1.0)), 0x1p-9);
  EXPECT_EQ(rounded(e4m3(), 0x3p-10), 0x1p-8);
}

TEST(Formats, e4m3_has_only_the_nans_7F_and_FF) {
  for (std::uint32_t code = 0; code < 256; ++code)
    EXPECT_EQ(std::isnan(decode(e4m3(), code)), code == 0x7F || code == 0xFF) << code;
}

// shared/cases/public_reports.md T42: the OCP reading, not FNUZ (0.5, 224, NaN).
TEST(Formats, e4m3_is_the_ocp_format) {
  EXPECT_EQ(decode(e4m3(), 0x38), 1.0);
  EXPECT_EQ(decode(e4m3(), 0x7E), 448.0);
  EXPECT_EQ(decode(e4m3(), 0x80), 0.0);
  EXPECT_TRUE(std::signbit(decode(e4m3(), 0x80)));
}

// shared/cases/public_reports.md T58: amax 537.6 over 448 is 1.2.
TEST(Formats, ue8m0_rounds_the_scale_of_537_6_down_to_1) { EXPECT_EQ(rounded(ue8m0(), 537.6 / 448), 1.0); }

TEST(Formats, ue8m0_code_is_the_biased_exponent) {
  for (std::uint32_t code = 0; code < 255; ++code)
    EXPECT_EQ(decode(ue8m0(), code), std::ldexp(1.0, static_cast<int>(code) - 127)) << code;
  EXPECT_TRUE(std::isnan(decode(ue8m0(), 0xFF)));
}

TEST(Formats, ue8m0_ties_between_powers_go_to_the_even_code) {
  EXPECT_EQ(rounded(ue8m0(), 1.5), 2.0);  // codes 127 and 128
  EXPECT_EQ(rounded(ue8m0(), 3.0), 2.0);  // codes 128 and 129
  EXPECT_EQ(rounded(ue8m0(), 3.1), 4.0);
  EXPECT_EQ(rounded(ue8m0(), std::nextafter(1.5, 0.0)), 1.0);
}

TEST(Formats, ue8m0_has_no_code_for_zero_and_negative_values) {
  for (const double value : {0.0, -0.0, -1.0, -0x1p-200, -kInfinity}) {
    EXPECT_EQ(encode(ue8m0(), value, Overflow::kSpecial), 0xFFU) << value;
    EXPECT_EQ(encode(ue8m0(), value, Overflow::kSaturate), 0U) << value;
  }
}

TEST(Formats, ue8m0_rounds_tiny_positive_values_to_its_smallest) {
  for (const double value : {0x1p-127, 0x1.8p-128, 0x1p-128, 0x1p-300, std::numeric_limits<double>::denorm_min()})
    EXPECT_EQ(encode(ue8m0(), value, Overflow::kSpecial), 0U) << value;
  EXPECT_EQ(encode(ue8m0(), 0x1.8p-127, Overflow::kSpecial), 0U);  // a tie of codes 0 and 1
  EXPECT_EQ(encode(ue8m0(), 0x1.81p-127, Overflow::kSpecial), 1U);
}

TEST(Formats, nan_becomes_the_quiet_nan_of_its_sign) {
  EXPECT_EQ(encode(bf16(), kNaN, Overflow::kSaturate), 0x7FC0U);
  EXPECT_EQ(encode(bf16(), -kNaN, Overflow::kSpecial), 0xFFC0U);
  EXPECT_EQ(encode(fp16(), kNaN, Overflow::kSpecial), 0x7E00U);
  EXPECT_EQ(encode(tf32(), kNaN, Overflow::kSpecial), 0x3FE00U);
  EXPECT_EQ(encode(fp32(), -kNaN, Overflow::kSpecial), 0xFFC00000U);
  EXPECT_EQ(encode(e4m3(), kNaN, Overflow::kSaturate), 0x7FU);
  EXPECT_EQ(encode(e4m3(), -kNaN, Overflow::kSaturate), 0xFFU);
  EXPECT_EQ(encode(e5m2(), kNaN, Overflow::kSpecial), 0x7EU);
  EXPECT_EQ(encode(ue8m0(), -kNaN, Overflow::kSaturate), 0xFFU);
}

TEST(Formats, zero_keeps_its_sign) {
  for (const Format* format : formats()) {
    if (!format->has_sign) continue;
    EXPECT_FALSE(std::signbit(rounded(*format, 0.0))) << format->name;
    EXPECT_TRUE(std::signbit(rounded(*format, -0.0))) << format->name;
    EXPECT_TRUE(std::signbit(rounded(*format, -std::numeric_limits<double>::denorm_min()))) << format->name;
  }
}

void expect_cast_agrees(double value) {
  const auto cast = static_cast<float>(value);
  const std::uint32_t code = encode(fp32(), value, Overflow::kSpecial);
  if (std::isnan(value)) {
    ASSERT_TRUE(std::isnan(decode(fp32(), code)));
    ASSERT_EQ(code >> 31, std::bit_cast<std::uint32_t>(cast) >> 31);
  } else {
    ASSERT_EQ(code, std::bit_cast<std::uint32_t>(cast)) << std::hexfloat << value;
    ASSERT_EQ(std::bit_cast<std::uint64_t>(decode(fp32(), code)),
              std::bit_cast<std::uint64_t>(static_cast<double>(cast)));
  }
}

TEST(Formats, fp32_agrees_with_the_compiler_cast) {
  std::mt19937_64 random(20240917);
  for (int i = 0; i < 1'000'000; ++i) {
    const std::uint64_t bits = random();
    ASSERT_NO_FATAL_FAILURE(expect_cast_agrees(std::bit_cast<double>(bits)));
    // Exponents around the range of float: 2^-160 to 2^130.
    const std::uint64_t exponent = 1023 - 160 + random() % 291;
    const std::uint64_t near = (bits & 0x800FFFFFFFFFFFFFULL) | exponent << 52;
    ASSERT_NO_FATAL_FAILURE(expect_cast_agrees(std::bit_cast<double>(near)));
    // A tie of float, and its neighbours.
    const std::uint64_t tie = (near & ~0x1FFFFFFFULL) | 0x10000000ULL;
    for (const std::uint64_t neighbour : {tie - 1, tie, tie + 1})
      ASSERT_NO_FATAL_FAILURE(expect_cast_agrees(std::bit_cast<double>(neighbour)));
  }
}

TEST(Formats, ulp_distance_counts_steps_between_values) {
  EXPECT_EQ(ulp_distance(bf16(), 1.0, 1.0), 0);
  EXPECT_EQ(ulp_distance(bf16(), 0.0, -0.0), 0);
  EXPECT_EQ(ulp_distance(bf16(), 1.0, 1.0078125), 1);
  EXPECT_EQ(ulp_distance(bf16(), 1.0078125, 1.0), 1);
  EXPECT_EQ(ulp_distance(fp16(), 0x1p-24, -0x1p-24), 2);
  EXPECT_EQ(ulp_distance(e4m3(), -448, 448), 2 * 0x7E);
  EXPECT_EQ(ulp_distance(fp32(), 0.0, 0x1p-149), 1);
  EXPECT_EQ(ulp_distance(fp32(), -fp32().max_finite, fp32().max_finite), 2LL * 0x7F7FFFFF);
  EXPECT_EQ(ulp_distance(ue8m0(), 0x1p-127, 0x1p127), 254);
}

TEST(Formats, ulp_distance_is_one_more_than_the_values_strictly_between) {
  std::mt19937_64 random(7);
  for (const Format* format : {&e4m3(), &e5m2(), &ue8m0()}) {
    std::vector<double> values;
    for (std::uint32_t code = 0; code < 256; ++code)
      if (const double value = decode(*format, code); std::isfinite(value) && !(value == 0 && std::signbit(value)))
        values.push_back(value);
    for (int i = 0; i < 20'000; ++i) {
      double a = values[random() % values.size()];
      double b = values[random() % values.size()];
      if (i % 2 != 0) a *= 1 + static_cast<double>(random() % 64) / 32;
      if (i % 3 == 0) b *= 1 - static_cast<double>(random() % 64) / 32;
      std::int64_t between = 0;
      for (const double value : values) between += value > std::min(a, b) && value < std::max(a, b) ? 1 : 0;
      ASSERT_EQ(ulp_distance(*format, a, b), a == b ? 0 : between + 1) << format->name << " " << a << " " << b;
    }
  }
}

TEST(Formats, every_real_dtype_but_f64_has_the_format_of_its_size) {
  EXPECT_EQ(format_of(DType::kE4M3), &e4m3());
  EXPECT_EQ(format_of(DType::kE5M2), &e5m2());
  EXPECT_EQ(format_of(DType::kUE8M0), &ue8m0());
  EXPECT_EQ(format_of(DType::kBF16), &bf16());
  EXPECT_EQ(format_of(DType::kF16), &fp16());
  EXPECT_EQ(format_of(DType::kF32), &fp32());
  EXPECT_EQ(format_of(DType::kF64), nullptr);
}

TEST(Formats, dtype_names_read_back) {
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
  }
  EXPECT_EQ(dtype_named("F8_E4M3FN"), std::nullopt);
  EXPECT_EQ(dtype_named("f32"), std::nullopt);
}

TEST(FormatsDeathTest, a_code_wider_than_its_format_aborts) {
  EXPECT_DEATH(decode(e4m3(), 0x100), "formats.cpp:[0-9]+: broken invariant");
  EXPECT_DEATH(decode(tf32(), 1U << 19), "broken invariant");
  EXPECT_DEATH(ulp_distance(e4m3(), kInfinity, 1), "broken invariant");
}

}  // namespace
}  // namespace assay
