// The public reports T53 to T60 and T66 through op calls: quantisation and dequantisation of blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cases/fp8.h"
#include "reference/ops/fp8.h"

namespace assay::reference {
namespace {

using nlohmann::json;
using Inputs = std::map<std::string, Tensor>;
using Numbers = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor tensor(DType dtype, Shape shape, const Numbers& values) {
  return Tensor::from_reals(dtype, std::move(shape), values);
}

Results<double> call(const std::string& op, const json& attributes, Inputs inputs) {
  OpTable<double> table;
  add_fp8_ops(table);
  return table.at(op)(Call<double>(make_call(op_named(op), attributes, std::move(inputs))));
}

/// Outputs of quantize_block, with the numbers that the codes stand for.
struct Blocks {
  Index codes, codes_columnwise;
  Array<double> scale_inv, scale_inv_columnwise, numbers;
};

Array<double> decoded(const Index& codes, const std::string& format) {
  Array<double> result(codes.shape);
  for (std::int64_t i = 0; i < codes.size(); ++i)
    result[i] = decode(format == "e4m3" ? e4m3() : e5m2(), static_cast<std::uint32_t>(codes[i]));
  return result;
}

Blocks quantised(const Tensor& x, json attributes) {
  attributes["columnwise"] = true;
  Results<double> results = call("quantize_block", attributes, {{"x", x}});
  const Index codes = std::get<Index>(results.at("codes"));
  return {codes, std::get<Index>(results.at("codes_columnwise")), std::get<Array<double>>(results.at("scale_inv")),
          std::get<Array<double>>(results.at("scale_inv_columnwise")),
          decoded(codes, attributes.value("format", "e4m3"))};
}

/// The cast alone: an infinity in the block gives the scale 1.
Numbers cast_alone(Numbers x) {
  x.push_back(kInfinity);
  const auto n = static_cast<std::int64_t>(x.size());
  Blocks blocks = quantised(tensor(DType::kF32, {1, n}, x), {{"block_columns", n}});
  EXPECT_EQ(blocks.scale_inv[0], 1.0);
  blocks.numbers.data.pop_back();
  return blocks.numbers.data;
}

const std::vector<QuantizerRole> kRoles = {QuantizerRole::kForwardInput, QuantizerRole::kForwardWeight,
                                           QuantizerRole::kBackwardGradient};

TEST(Fp8Blocks, T53_ZeroBlock) {
  EXPECT_TRUE(std::isnan(0.0F * (448.0F / 0.0F)));  // without the special case
  for (const QuantizerRole role : kRoles)
    for (const bool power_of_two : {true, false})
      for (const double zero : {0.0, -0.0}) {
        const BlockQuantizer quantizer = block_quantizer({.power_of_two = power_of_two}, role);
        const std::string format(quantizer.format->name);
        Numbers x, filled;
        for (std::int64_t i = 0; i < 128 * 384; ++i) {
          const double number = static_cast<double>(i * 37 % 113) - 50.0;
          x.push_back(i % 384 / 128 == 1 ? zero : number);
          filled.push_back(number);
        }
        const json attributes = attributes_of(quantizer);
        const Blocks blocks = quantised(tensor(DType::kF32, {128, 384}, x), attributes);
        const Blocks other = quantised(tensor(DType::kF32, {128, 384}, filled), attributes);
        for (std::int64_t i = 0; i < blocks.codes.size(); ++i) {
          const std::int64_t block = i / 384 / quantizer.block_rows * 3 + i % 384 / 128;
          if (block % 3 != 1) {
            EXPECT_EQ(blocks.codes[i], other.codes[i]);
            EXPECT_EQ(blocks.scale_inv[block], other.scale_inv[block]);
            continue;
          }
          EXPECT_EQ(blocks.codes[i], std::signbit(zero) ? 0x80 : 0);
          EXPECT_TRUE(std::isfinite(blocks.scale_inv[block]) && blocks.scale_inv[block] > 0.0);
          if (role == QuantizerRole::kBackwardGradient) {
            EXPECT_EQ(power_of_two, blocks.scale_inv[block] == 0x1p-55);
          } else {
            EXPECT_EQ(blocks.scale_inv[block], 1.0);
          }
        }
        for (std::int64_t i = 128; i < 256; ++i) EXPECT_EQ(blocks.codes_columnwise.at(i, 5) & 0x7F, 0);
      }
  const Results<double> scale = call("fp8_scale", {{"format", "e5m2"}, {"amax_epsilon", 1e-12}},
                                     {{"amax", tensor(DType::kF32, {2}, {0.0, 1e-13})}});
  EXPECT_EQ(std::get<Array<double>>(scale.at("scale")).data, (Numbers{0x1p55, 0x1p55}));
}

TEST(Fp8Blocks, T53_GuardChangesOnlyNearlyZeroBlocks) {
  const Tensor amax = tensor(DType::kF32, {5}, {0.0, 0x1p-41, 1e-11, 1.0, 3e38});
  for (const bool power_of_two : {true, false}) {
    const json common = {{"format", "e5m2"}, {"power_of_two", power_of_two}};
    json guarded = common;
    guarded["amax_epsilon"] = 1e-12;
    const auto plain = std::get<Array<double>>(call("fp8_scale", common, {{"amax", amax}}).at("scale"));
    const auto floored = std::get<Array<double>>(call("fp8_scale", guarded, {{"amax", amax}}).at("scale"));
    for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(plain[i] != floored[i], i < 2) << i;
  }
}

TEST(Fp8Blocks, T54_TinyBlock) {
  EXPECT_NEAR(448.0 / 0x1p-133, 4.9e42, 0.05e42);
  EXPECT_TRUE(std::isinf(448.0F / 0x1p-133F));
  for (const QuantizerRole role : kRoles)
    for (const bool power_of_two : {true, false}) {
      const BlockQuantizer quantizer = block_quantizer({.power_of_two = power_of_two}, role);
      const Blocks blocks = quantised(tensor(DType::kBF16, {1, 2}, {0x1p-133, -0x1p-133}), attributes_of(quantizer));
      EXPECT_TRUE(std::isfinite(blocks.scale_inv[0]));
      EXPECT_EQ(blocks.numbers[0], -blocks.numbers[1]);
      if (power_of_two && role != QuantizerRole::kBackwardGradient) {
        EXPECT_EQ(blocks.numbers[0] * blocks.scale_inv[0], 0x1p-133);
      }
    }
  // Every amax below 1.3166e-36 overflows, and none above.
  for (std::uint32_t code = 1; code < 0x7F80; ++code) {
    const auto amax = static_cast<float>(decode(bf16(), code));
    EXPECT_EQ(std::isinf(448.0F / amax), static_cast<double>(amax) < 1.3166e-36);
    QuantizeOptions options;
    options.power_of_two = false;
    options.input_format = &bf16();
    EXPECT_TRUE(std::isfinite(fp8_scale(amax, options)));
  }
}

TEST(Fp8Blocks, InfiniteAndNaNTouchOnlyTheirOwnTiles) {
  for (const double special : {kInfinity, -kInfinity, kNaN}) {
    Numbers x(2 * 256, 3.0);
    x[5] = special;
    const Blocks blocks = quantised(tensor(DType::kF32, {2, 256}, x), json::object());
    EXPECT_EQ(blocks.scale_inv.data, (Numbers{1, 0x1p-7, 0x1p-7, 0x1p-7}));
    for (std::int64_t channel = 0; channel < 256; ++channel)
      EXPECT_EQ(blocks.scale_inv_columnwise[channel], channel == 5 ? 1.0 : 0x1p-7);
    if (std::isnan(special)) {
      EXPECT_EQ(blocks.codes[5], 0x7F);
    } else {
      EXPECT_EQ(blocks.numbers[5], std::copysign(448.0, special));
    }
    EXPECT_EQ(blocks.numbers[6], 3.0);
  }
}

TEST(Fp8Blocks, T56_OneScale) {
  const Tensor x = tensor(DType::kF32, {1, 4}, {300, 100, -37, 1});
  const Blocks f32_scale = quantised(x, {{"power_of_two", false}});
  EXPECT_NEAR(f32_scale.scale_inv[0], 0.6696428657, 5e-11);
  EXPECT_EQ(f32_scale.numbers.data, (Numbers{448, 144, -56, 1.5}));  // wrong if read back with the scale 1
  EXPECT_NEAR(f32_scale.numbers[0] / 300 - 1, 0.49, 0.005);
  const Blocks rounded_scale = quantised(x, json::object());
  EXPECT_EQ(rounded_scale.scale_inv[0], 1.0);
  EXPECT_EQ(rounded_scale.numbers.data, (Numbers{288, 96, -36, 1}));
}

TEST(Fp8Blocks, T57_Requantise) {
  const Tensor codes = tensor(DType::kE4M3, {1, 8}, {8, 9, 10, 11, 12, 13, 14, 15});
  const auto read = std::get<Array<double>>(
      call("dequantize_block", json::object(), {{"codes", codes}, {"scales", tensor(DType::kF32, {1, 1}, {0.75})}})
          .at("y"));
  EXPECT_EQ(read.data, (Numbers{6, 6.75, 7.5, 8.25, 9, 9.75, 10.5, 11.25}));
  const Numbers again{6, 7, 7.5, 8, 9, 10, 10, 11};
  EXPECT_EQ(cast_alone(read.data), again);
  const Blocks blocks = quantised(tensor(DType::kF32, {1, 8}, read.data), json::object());
  for (std::size_t i = 0; i < again.size(); ++i) EXPECT_EQ(blocks.numbers.data[i] * blocks.scale_inv[0], again[i]);
  // What the GEMM must give: the sum of the second list, not that of the first.
  const auto y = std::get<Array<double>>(call("linear_fp8", json::object(),
                                              {{"x_codes", tensor(DType::kE4M3, {1, 8}, Numbers(8, 1.0))},
                                               {"x_scales", tensor(DType::kF32, {1, 1}, {1})},
                                               {"w_codes", tensor(DType::kE4M3, {1, 8}, blocks.numbers.data)},
                                               {"w_scales", tensor(DType::kF32, {1, 1}, blocks.scale_inv.data)}})
                                             .at("y"));
  EXPECT_EQ(y[0], 68.5);
  EXPECT_EQ(0.75 * 92, 69.0);
}

TEST(Fp8Blocks, T58_ScaleRoundedUp) {
  const Blocks blocks = quantised(tensor(DType::kF32, {1, 1}, {537.6}), json::object());
  EXPECT_EQ(blocks.scale_inv[0], 2.0);
  EXPECT_EQ(blocks.numbers[0] * blocks.scale_inv[0], 512.0);
  for (const double exponent : {std::floor(std::log2(537.6 / 448)), std::round(std::log2(537.6 / 448))})
    EXPECT_EQ(exponent, 0.0);
  EXPECT_EQ(cast_alone({537.6}), (Numbers{448}));
  EXPECT_NEAR(1 - 448 / 537.6, 0.167, 5e-4);
  // No maximum of any binade is ever clipped.
  for (double amax = 1.0; amax < 4096.0; amax *= 1.01)
    EXPECT_LE(amax / quantised(tensor(DType::kF32, {1, 1}, {amax}), json::object()).scale_inv[0], 448.0);
}

TEST(Fp8Blocks, T59_Transpose) {
  for (const bool signs : {false, true}) {
    const auto byte = [&](std::int64_t i, std::int64_t j) {
      return (i * 7 + j * 13) % 126 + (signs && i % 2 ? 128 : 0);
    };
    Numbers x;
    for (std::int64_t i = 0; i < 128 * 128; ++i)
      x.push_back(decode(e4m3(), static_cast<std::uint32_t>(byte(i / 128, i % 128))));
    const Tensor tile = tensor(DType::kF32, {128, 128}, x);
    const Blocks square = quantised(tile, {{"block_rows", 128}});
    EXPECT_EQ(square.scale_inv.data, (Numbers{1}));
    EXPECT_EQ(square.scale_inv_columnwise.data, (Numbers{1}));
    for (std::int64_t i = 0; i < 128; ++i)
      for (std::int64_t j = 0; j < 128; ++j) {
        EXPECT_EQ(square.codes.at(i, j), byte(i, j));
        EXPECT_EQ(square.codes_columnwise.at(j, i), byte(i, j));
      }
    EXPECT_NE(square.codes.data, square.codes_columnwise.data);
  }
}

TEST(Fp8Blocks, ColumnwiseTilesAreNotTheTransposeOfTheRowwiseCodes) {
  const Tensor x = tensor(DType::kF32, {2, 2}, {448, 1.1, 300, 2});
  const Blocks blocks = quantised(x, json::object());
  EXPECT_EQ(blocks.scale_inv.data, (Numbers{1, 1}));
  EXPECT_EQ(blocks.scale_inv_columnwise.data, (Numbers{1, 0x1p-7}));
  EXPECT_NE(blocks.codes.at(0, 1), blocks.codes_columnwise.at(1, 0));
  // Quantised from the original: 1.1 * 2^7 = 140.8 -> 144. From the row-wise code 1.125 it would be the same number,
  // but 1e-4 is lost row-wise and kept column-wise.
  const Blocks small = quantised(tensor(DType::kF32, {2, 2}, {448, 1e-4, 300, 1e-4}), json::object());
  EXPECT_EQ(small.numbers[1], 0.0);
  EXPECT_NEAR(
      decode(e4m3(), static_cast<std::uint32_t>(small.codes_columnwise.at(1, 0))) * small.scale_inv_columnwise[1], 1e-4,
      1e-4 * e4m3().unit_roundoff);
  EXPECT_EQ(call("quantize_block", json::object(), {{"x", x}}).count("codes_columnwise"), 0U);
}

TEST(Fp8Blocks, T60_BlockGrids) {
  Numbers scales{1, 2, 4, 8, 16};
  const auto read = [&](std::int64_t block_rows) {
    return std::get<Array<double>>(call("dequantize_block", {{"block_rows", block_rows}},
                                        {{"codes", tensor(DType::kE4M3, {576, 128}, Numbers(576 * 128, 1.0))},
                                         {"scales", tensor(DType::kF32, {5, 1}, scales)}})
                                       .at("y"));
  };
  const Array<double> y = read(128);
  const std::vector<std::pair<std::int64_t, double>> expected{{0, 1}, {127, 1}, {128, 2}, {512, 16}, {575, 16}};
  for (const auto& [row, number] : expected)
    for (std::int64_t j = 0; j < 128; ++j) EXPECT_EQ(y.at(row, j), number);
  EXPECT_EQ(y.at(115, 0), 1.0);
  EXPECT_EQ(scales[115 / (576 / 5)], 2.0);  // a block of 115 rows, inferred from the grid
  EXPECT_THROW(read(576 / 5), InputError);  // which 5 blocks do not even cover
  const auto one = std::get<Array<double>>(
      call("dequantize_block", json::object(),
           {{"codes", tensor(DType::kE4M3, {1, 1}, {448})}, {"scales", tensor(DType::kF32, {1, 1}, {0x1p-12})}})
          .at("y"));
  EXPECT_EQ(one[0], 0.109375);
}

TEST(Fp8Blocks, T66_Cast) {
  EXPECT_EQ(cast_alone({448, 449, 464, 464.05, 465, 17, 19, 232, 272, 0x1p-10, 3 * 0x1p-10}),
            (Numbers{448, 448, 448, 448, 448, 16, 20, 224, 256, 0, 0x1p-8}));
  EXPECT_EQ(cast_alone({static_cast<double>(std::nextafter(0x1p-10F, 1.0F))}), (Numbers{0x1p-9}));
  EXPECT_EQ(rounded(e4m3(), 464.0, Overflow::kSpecial), 448.0);
  for (const double beyond : {464.05, 465.0}) EXPECT_TRUE(std::isnan(rounded(e4m3(), beyond, Overflow::kSpecial)));
}

TEST(Fp8Blocks, T66_AllCodes) {
  Numbers all;
  for (std::uint32_t code = 0; code < 256; ++code) {
    const bool nan = code == 0x7F || code == 0xFF;
    const double number = decode(e4m3(), code);
    EXPECT_EQ(std::isnan(number), nan);
    EXPECT_EQ(encode(e4m3(), number, Overflow::kSaturate), code);
    EXPECT_EQ(encode(e4m3(), number, Overflow::kSpecial), code);
    if (nan) continue;
    const auto exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
    EXPECT_EQ(number, code & 0x80 ? -magnitude : magnitude);
    all.push_back(number);
  }
  EXPECT_EQ(cast_alone(all), all);
  // Between two neighbours: the tie goes to the even code, everything else to the nearer.
  for (std::uint32_t code = 0; code + 1 < 0x7F; ++code) {
    const double low = decode(e4m3(), code), high = decode(e4m3(), code + 1), middle = (low + high) / 2;
    EXPECT_EQ(cast_alone({middle, std::nextafter(static_cast<float>(middle), 0.0F),
                          std::nextafter(static_cast<float>(middle), 1e3F), -middle}),
              (Numbers{code % 2 ? high : low, low, high, code % 2 ? -high : -low}));
  }
}

}  // namespace
}  // namespace assay::reference
