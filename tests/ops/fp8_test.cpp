#include "reference/ops/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace assay::reference {
namespace {

Tensor f32(Shape shape, const std::vector<double>& values) {
  return Tensor::from_reals(DType::kF32, std::move(shape), values);
}

QuantizeOptions options(const Format& format, bool power_of_two = true, float epsilon = 0.0F) {
  QuantizeOptions result;
  result.format = &format;
  result.power_of_two = power_of_two;
  result.amax_epsilon = epsilon;
  return result;
}

double value(const Format& format, std::int64_t code) { return decode(format, static_cast<std::uint32_t>(code)); }

/// Numbers after quantising one row as one block and reading it back.
std::vector<double> read_back(const std::vector<double>& x, const QuantizeOptions& with) {
  const auto n = static_cast<std::int64_t>(x.size());
  const Quantized q = quantize_block(f32({1, n}, x), 1, 128, with);
  std::vector<double> result;
  for (const std::int64_t code : q.codes.data)
    result.push_back(value(*with.format, code) * static_cast<double>(q.scale_inv[0]));
  return result;
}

/// Codes under scale 1, which an infinity in the block enforces: the cast alone.
std::vector<double> cast_alone(std::vector<double> x) {
  x.push_back(std::numeric_limits<double>::infinity());
  std::vector<double> result = read_back(x, options(e4m3()));
  result.pop_back();
  return result;
}

TEST(QuantizeBlock, T53_a_zero_block_has_zero_codes_and_leaves_its_neighbours_alone) {
  for (const Format* format : {&e4m3(), &e5m2()})
    for (const std::int64_t rows : {1, 128}) {
      std::vector<double> x;
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < 384; ++j)
          x.push_back(j / 128 == 1 ? (j % 2 ? 0.0 : -0.0) : static_cast<double>(j % 16 - 7));
      const Quantized q = quantize_block(f32({rows, 384}, x), rows, 128, options(*format));
      EXPECT_EQ(q.scale_inv[1], 1.0F);
      for (std::int64_t i = 0; i < q.codes.size(); ++i) {
        const std::int64_t block = i % 384 / 128;
        const double back =
            value(*format, q.codes[i]) * static_cast<double>(q.scale_inv[static_cast<std::size_t>(block)]);
        EXPECT_EQ(back, x[static_cast<std::size_t>(i)]);
        if (block == 1) {
          EXPECT_EQ(q.codes[i] & 0x7F, 0);
        }
      }
    }
  EXPECT_EQ(fp8_scale(0.0F, options(e5m2(), true, 1e-12F)), 0x1p55F);
}

TEST(QuantizeBlock, T54_a_scale_that_overflows_becomes_the_largest_number_of_the_input) {
  EXPECT_NEAR(448.0 / 0x1p-133, 4.9e42, 0.05e42);
  QuantizeOptions with = options(e4m3(), false);
  EXPECT_EQ(fp8_scale(0x1p-133F, with), std::numeric_limits<float>::max());
  with.input_format = &bf16();
  EXPECT_EQ(fp8_scale(0x1p-133F, with), 0x1.FEp127F);
  with.power_of_two = true;
  EXPECT_EQ(fp8_scale(0x1p-133F, with), 0x1p127F);
  // Every amax below 1.3166e-36 overflows.
  with = options(e4m3(), false);
  EXPECT_EQ(fp8_scale(1.3165e-36F, with), std::numeric_limits<float>::max());
  EXPECT_LT(fp8_scale(1.3166e-36F, with), std::numeric_limits<float>::max());
  for (const double tiny : {0x1p-133, 0x1p-149})
    for (const double back : read_back({tiny, -tiny}, options(e4m3()))) EXPECT_TRUE(std::isfinite(back));
}

TEST(QuantizeBlock, T56_codes_and_scale_come_from_one_scale) {
  const std::vector<double> x{300, 100, -37, 1};
  EXPECT_EQ(read_back(x, options(e4m3())), (std::vector<double>{288, 96, -36, 1}));
  const Quantized q = quantize_block(f32({1, 4}, x), 1, 128, options(e4m3(), false));
  EXPECT_NEAR(static_cast<double>(q.scale_inv[0]), 0.6696428657, 5e-11);
  std::vector<double> wrong;  // codes of the f32 scale read back with scale 1
  for (const std::int64_t code : q.codes.data) wrong.push_back(value(e4m3(), code));
  EXPECT_EQ(wrong, (std::vector<double>{448, 144, -56, 1.5}));
}

TEST(QuantizeBlock, T57_requantised_weights_are_rounded_again) {
  std::vector<double> x;
  for (int code = 8; code < 16; ++code) x.push_back(code * 0.75);
  EXPECT_EQ(read_back(x, options(e4m3())), (std::vector<double>{6, 7, 7.5, 8, 9, 10, 10, 11}));
  EXPECT_EQ(cast_alone(x), (std::vector<double>{6, 7, 7.5, 8, 9, 10, 10, 11}));
}

TEST(QuantizeBlock, T58_power_of_two_scales_never_clip_the_maximum) {
  EXPECT_EQ(read_back({537.6}, options(e4m3())), (std::vector<double>{512}));
  const Quantized q = quantize_block(f32({1, 1}, {537.6}), 1, 128, options(e4m3()));
  EXPECT_EQ(q.scale_inv[0], 2.0F);
  // Floor and nearest of log2(537.6 / 448) both give the factor 1.
  EXPECT_EQ(std::floor(std::log2(537.6 / 448)), 0.0);
  EXPECT_EQ(std::round(std::log2(537.6 / 448)), 0.0);
  EXPECT_EQ(cast_alone({537.6}), (std::vector<double>{448}));
  EXPECT_NEAR(1.0 - 448 / 537.6, 0.167, 5e-4);
}

TEST(QuantizeBlock, T59_the_transposed_tile_has_exactly_the_permuted_bytes) {
  for (const bool signs : {false, true}) {
    std::vector<double> x;
    for (std::int64_t i = 0; i < 128; ++i)
      for (std::int64_t j = 0; j < 128; ++j)
        x.push_back(value(e4m3(), (i * 7 + j * 13) % 126 + (signs && i % 2 ? 128 : 0)));
    const Tensor tile = f32({128, 128}, x);
    const Quantized q = quantize_block(tile, 128, 128, options(e4m3()));
    const Quantized t = quantize_block(tile.permuted({1, 0}), 128, 128, options(e4m3()));
    EXPECT_EQ(q.scale_inv[0], 1.0F);
    for (std::int64_t i = 0; i < 128; ++i)
      for (std::int64_t j = 0; j < 128; ++j) {
        EXPECT_EQ(q.codes.at(i, j), (i * 7 + j * 13) % 126 + (signs && i % 2 ? 128 : 0));
        EXPECT_EQ(t.codes.at(j, i), q.codes.at(i, j));
      }
  }
}

TEST(QuantizeBlock, columnwise_tiles_are_quantised_on_their_own) {
  const Tensor x = f32({2, 2}, {448, 1, 300, 2});
  const Quantized rows = quantize_block(x, 1, 128, options(e4m3()));
  const Quantized columns = quantize_block(x.permuted({1, 0}), 1, 128, options(e4m3()));
  EXPECT_EQ(rows.scale_inv, (std::vector<float>{1, 1}));
  EXPECT_EQ(columns.scale_inv, (std::vector<float>{1, 0x1p-7F}));
  EXPECT_NE(rows.codes.at(0, 1), columns.codes.at(1, 0));
}

TEST(QuantizeBlock, infinity_and_NaN_give_the_scale_one_even_with_a_floor) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float epsilon : {0.0F, 1e-12F}) {
    EXPECT_EQ(fp8_scale(infinity, options(e4m3(), true, epsilon)), 1.0F);
    EXPECT_EQ(fp8_scale(nan, options(e4m3(), true, epsilon)), 1.0F);
  }
  const Quantized q = quantize_block(f32({1, 3}, {2, nan, 3}), 1, 128, options(e4m3()));
  EXPECT_EQ(q.scale_inv[0], 1.0F);
  EXPECT_EQ(q.codes[1], 0x7F);
  // The Python reference's 0 turns the infinity into NaN.
  QuantizeOptions zero = options(e4m3());
  zero.infinite_amax_scale = 0.0F;
  const Quantized p = quantize_block(f32({1, 3}, {2, -infinity, -3}), 1, 128, zero);
  EXPECT_EQ(p.codes.data, (std::vector<std::int64_t>{0, 0x7F, 0x80}));
  EXPECT_EQ(p.scale_inv[0], infinity);
}

TEST(QuantizeBlock, a_dtype_wider_than_f32_is_refused) {
  EXPECT_THROW(quantize_block(Tensor::zeros(DType::kF64, {1, 1}), 1, 128, {}), InputError);
}

TEST(QuantizeBlock, T66_the_cast_is_to_nearest_even_and_saturates) {
  EXPECT_EQ(cast_alone({448, 449, 464, 464.05, 465, 17, 19, 232, 272, 0x1p-10, 3 * 0x1p-10}),
            (std::vector<double>{448, 448, 448, 448, 448, 16, 20, 224, 256, 0, 0x1p-8}));
  EXPECT_EQ(cast_alone({std::nextafter(0x1p-10F, 1.0F)}), (std::vector<double>{0x1p-9}));
  EXPECT_TRUE(std::isnan(rounded(e4m3(), 464.05, Overflow::kSpecial)));
  EXPECT_EQ(rounded(e4m3(), 464.0, Overflow::kSpecial), 448.0);
}

TEST(QuantizeBlock, T66_all_codes_round_trip) {
  std::vector<double> x;
  for (std::int64_t code = 0; code < 256; ++code) x.push_back(value(e4m3(), code));
  const Quantized q = quantize_block(f32({1, 256}, x), 1, 256, options(e4m3()));  // NaN: scale 1
  for (std::int64_t code = 0; code < 256; ++code) {
    const bool nan = code == 0x7F || code == 0xFF;
    EXPECT_EQ(std::isnan(x[static_cast<std::size_t>(code)]), nan);
    EXPECT_EQ(q.codes[code], nan ? 0x7F : code);
  }
}

TEST(DequantizeBlock, T60_blocks_have_128_rows_and_the_last_is_cropped) {
  Array<Ball> codes({576, 128}), scales({5, 1});
  for (Ball& code : codes.data) code = Ball(1.0);
  for (std::int64_t b = 0; b < 5; ++b) scales[b] = Ball(std::ldexp(1.0, static_cast<int>(b)));
  const Array<Ball> y = dequantize_block(codes, scales, 128, 128);
  const std::vector<std::pair<std::int64_t, double>> expected{{0, 1}, {127, 1}, {128, 2}, {512, 16}, {575, 16}};
  for (const auto& [row, number] : expected) EXPECT_TRUE(certainly_equal(y.at(row, 127), Ball(number)));
  EXPECT_TRUE(certainly_equal(y.at(115, 0), Ball(1.0)));
  EXPECT_EQ(midpoint(scales[115 / (576 / 5)]), 2.0);  // block 115 inferred from the grid
  EXPECT_THROW(dequantize_block(codes, scales, 115, 128), InputError);
  const Array<Ball> one = dequantize_block(Array<Ball>({1, 1}, {448.0}), Array<Ball>({1, 1}, {0x1p-12}), 128, 128);
  EXPECT_TRUE(certainly_equal(one[0], Ball(0.109375)));
}

template <class T>
Array<T> filled(Shape shape, double number) {
  Array<T> result(std::move(shape));
  for (T& x : result.data) x = T(number);
  return result;
}

TEST(LinearFp8, T62_every_block_uses_its_own_scale) {
  const Array<Ball> x = filled<Ball>({1, 384}, 1.0), w = filled<Ball>({1, 384}, 1.0);
  const Array<Ball> y = linear_fp8(x, filled<Ball>({1, 3}, 1.0), w, Array<Ball>({1, 3}, {1.0, 2.0, 4.0}), 128);
  EXPECT_TRUE(certainly_equal(y[0], Ball(896.0)));
}

TEST(LinearFp8, T62_no_two_neighbouring_scales_agree) {
  const auto scale = [](std::int64_t a, std::int64_t b) {
    return std::ldexp(1.0, static_cast<int>((5 * a + 3 * b) % 11 - 5));
  };
  const std::int64_t rows = 3, columns = 300, blocks = 3, inner = 384;
  Array<double> x_scales({rows, blocks}), w_scales({3, blocks});
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t m = 0; m < rows; ++m) x_scales.at(m, b) = scale(m + 4, b);
    for (std::int64_t n = 0; n < 3; ++n) w_scales.at(n, b) = scale(n, b);
  }
  Array<double> x({rows, inner}), w({columns, inner});
  for (std::int64_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i % 15 - 7);
  for (std::int64_t i = 0; i < w.size(); ++i) w[i] = static_cast<double>(i % 13 - 6);
  const Array<double> y = linear_fp8(x, x_scales, w, w_scales, 128);
  const Array<double> dx = dequantize_block(x, x_scales, 1, 128), dw = dequantize_block(w, w_scales, 128, 128);
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t n = 0; n < columns; ++n)
      EXPECT_EQ(y.at(m, n), dot(dx.row(m, inner), 1, dw.row(n, inner), 1, inner));
  EXPECT_THROW(linear_fp8(x, w_scales, w, filled<double>({2, blocks}, 1.0), 128), InputError);
}

TEST(LinearFp8, T65_bound_permits_a_14_bit_accumulator_only_when_it_is_declared) {
  Context replacement;
  replacement.rounding = {0x1p-24, 0.0, 0x1p-126};
  const ContextScope scope(replacement);
  Array<Bound> x = filled<Bound>({1, 128}, 1.0), w = x;
  x[0] = 128.0;
  w[0] = 128.0;
  const Array<Bound> one = filled<Bound>({1, 1}, 1.0);
  const Bound plain = linear_fp8(x, one, w, one, 128)[0], few = linear_fp8(x, one, w, one, 128, 13)[0];
  EXPECT_EQ(plain.v, 16511.0);
  EXPECT_LT(plain.e, 1.0);
  EXPECT_GE(few.e, 16511.0 - 16384.0);
  EXPECT_LT(few.e, 4.0 * 35.0 * 2.0);  // 4 steps of at most 34 cuts at 2^(14-13)
}

}  // namespace
}  // namespace assay::reference
