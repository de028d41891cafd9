// The public reports T62 to T65 and T68: products over quantised operands, groups, the accumulator, exact integers.
#include "reference/ops/fp8_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/ops/fp8_accumulator.h"
#include "reference/ops/linear.h"

namespace assay::reference {
namespace {

using Numbers = std::vector<double>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kFourteenBits = 13, kTwentyTwoBits = 21;  // behind the leading one

Tensor tensor(DType dtype, Shape shape, const Numbers& values) {
  return Tensor::from_reals(dtype, std::move(shape), values);
}

/// Integers of [-limit, limit] without a pattern.
Numbers integers(std::int64_t count, std::int64_t limit, std::uint32_t seed) {
  Numbers result;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525U + 1013904223U;
    result.push_back(static_cast<double>(static_cast<std::int64_t>(seed >> 8) % (2 * limit + 1) - limit));
  }
  return result;
}

Array<double> filled(Shape shape, double number) {
  Array<double> result(std::move(shape));
  std::fill(result.data.begin(), result.data.end(), number);
  return result;
}

/// F32 as a device runs it: every operation rounded, sums in an order that the seed chooses; `format` at all points.
Context device(std::uint64_t seed, PointFormat format = {}) {
  auto table = std::make_shared<PointTable>();
  table->points.fill(format);
  Context result;
  result.rounding = {.compute = 0x1p-24,
                     .activation = 0x1p-24,
                     .tiny = 0x1p-126,
                     .compute_format = &fp32(),
                     .points = table,
                     .execution = Execution::kNearest};
  result.stream = seed;
  return result;
}

Array<Sampled> sampled(const Numbers& values, Shape shape) {
  Array<Sampled> result(std::move(shape));
  for (std::int64_t i = 0; i < result.size(); ++i) result[i] = Sampled(values[static_cast<std::size_t>(i)]);
  return result;
}

// T62

float distinct_scale(std::int64_t a, std::int64_t b) {
  return std::ldexp(1.0F, static_cast<int>((5 * a + 3 * b) % 11 - 5));
}

/// A copy of whole numbers under distinct scales.
Quantized copy_of(const Numbers& numbers, std::int64_t rows, std::int64_t inner, std::int64_t block_rows,
                  const Format& format, std::int64_t shift) {
  Quantized copy{Index({rows, inner}), {}, {(rows + block_rows - 1) / block_rows, (inner + 127) / 128}};
  for (std::int64_t i = 0; i < rows * inner; ++i)
    copy.codes[i] = encode(format, numbers[static_cast<std::size_t>(i)], Overflow::kSaturate);
  for (std::int64_t a = 0; a < copy.grid[0]; ++a)
    for (std::int64_t b = 0; b < copy.grid[1]; ++b) copy.scale_inv.push_back(distinct_scale(a + shift, b));
  return copy;
}

/// Sum over k of number times the scale of its block, element by element, after the definition.
Array<double> by_definition(const Quantized& a, const Format& a_format, std::int64_t a_rows, const Quantized& b,
                            const Format& b_format, std::int64_t b_rows) {
  const auto number = [](const Quantized& copy, const Format& format, std::int64_t block_rows, std::int64_t i,
                         std::int64_t k) {
    const float scale = copy.scale_inv[static_cast<std::size_t>(i / block_rows * copy.grid[1] + k / 128)];
    return decode(format, static_cast<std::uint32_t>(copy.codes.at(i, k))) * static_cast<double>(scale);
  };
  Array<double> y({a.codes.dim(0), b.codes.dim(0)});
  for (std::int64_t i = 0; i < y.dim(0); ++i)
    for (std::int64_t j = 0; j < y.dim(1); ++j)
      for (std::int64_t k = 0; k < a.codes.dim(1); ++k)
        y.at(i, j) += number(a, a_format, a_rows, i, k) * number(b, b_format, b_rows, j, k);
  return y;
}

TEST(Fp8Gemm, T62_ScaleLayout) {
  const Array<double> ones = filled({1, 384}, 1.0), one = filled({1, 3}, 1.0);
  EXPECT_EQ(linear_fp8(ones, one, ones, Array<double>({1, 3}, {1, 2, 4}), 128)[0], 896.0);
  EXPECT_EQ(linear_fp8(ones, one, ones, Array<double>({1, 3}, {1, 1, 1}), 128)[0], 384.0);
  for (std::int64_t a = 0; a < 11; ++a)
    for (std::int64_t b = 0; b < 11; ++b) {
      EXPECT_NE(distinct_scale(a, b), distinct_scale(a + 1, b));
      EXPECT_NE(distinct_scale(a, b), distinct_scale(a, b + 1));
    }
}

TEST(Fp8Gemm, T62_ForwardDgradWgrad) {
  const std::int64_t tokens = 140, outputs = 150, inputs = 270;
  Fp8Copies x, weight, dy;
  dy.format = &e5m2();
  // Row-wise and column-wise codes differ on purpose: a product that reads the wrong copy gives other numbers.
  x.rowwise = copy_of(integers(tokens * inputs, 7, 1), tokens, inputs, 1, e4m3(), 0);
  x.columnwise = copy_of(integers(tokens * inputs, 7, 2), inputs, tokens, 1, e4m3(), 1);
  weight.rowwise = copy_of(integers(outputs * inputs, 7, 3), outputs, inputs, 128, e4m3(), 2);
  weight.columnwise = copy_of(integers(outputs * inputs, 7, 4), inputs, outputs, 128, e4m3(), 3);
  dy.rowwise = copy_of(integers(tokens * outputs, 7, 5), tokens, outputs, 1, e5m2(), 4);
  dy.columnwise = copy_of(integers(tokens * outputs, 7, 6), outputs, tokens, 1, e5m2(), 5);
  const Array<double> y = fp8_forward<double>(x, weight), d_x = fp8_dgrad<double>(dy, weight),
                      d_weight = fp8_wgrad<double>(dy, x);
  EXPECT_EQ(y.shape, (Shape{tokens, outputs}));
  EXPECT_EQ(y.data, by_definition(x.rowwise, e4m3(), 1, weight.rowwise, e4m3(), 128).data);
  EXPECT_EQ(d_x.shape, (Shape{tokens, inputs}));
  EXPECT_EQ(d_x.data, by_definition(dy.rowwise, e5m2(), 1, weight.columnwise, e4m3(), 128).data);
  EXPECT_EQ(d_weight.shape, (Shape{outputs, inputs}));
  EXPECT_EQ(d_weight.data, by_definition(dy.columnwise, e5m2(), 1, x.columnwise, e4m3(), 1).data);
  // Scales read from the neighbouring K block, or one weight block for all rows, are seen.
  Fp8Copies wrong = weight;
  for (std::size_t row = 0; row < wrong.rowwise.scale_inv.size(); row += 3)
    std::rotate(wrong.rowwise.scale_inv.begin() + static_cast<std::ptrdiff_t>(row),
                wrong.rowwise.scale_inv.begin() + static_cast<std::ptrdiff_t>(row) + 1,
                wrong.rowwise.scale_inv.begin() + static_cast<std::ptrdiff_t>(row) + 3);
  EXPECT_NE(y.data, fp8_forward<double>(x, wrong).data);
  wrong = weight;
  std::copy_n(wrong.rowwise.scale_inv.begin(), 3, wrong.rowwise.scale_inv.begin() + 3);
  EXPECT_NE(y.data, fp8_forward<double>(x, wrong).data);
}

TEST(Fp8Gemm, T62_WgradAsAnOpCall) {
  OpTable<double> table;
  add_fp8_ops(table);
  const auto call = [&](const nlohmann::json& attributes, const Shape& w_scales) {
    return table.at("linear_fp8")(Call<double>(make_call(
        op_named("linear_fp8"), attributes,
        {{"x_codes", tensor(DType::kE5M2, {2, 256}, Numbers(512, 1.0))},
         {"x_scales", tensor(DType::kF32, {2, 2}, {1, 2, 4, 8})},
         {"w_codes", tensor(DType::kE4M3, {3, 256}, Numbers(768, 1.0))},
         {"w_scales", tensor(DType::kF32, w_scales, w_scales[0] == 3 ? Numbers{1, 3, 5, 7, 9, 11} : Numbers{1, 3})}})));
  };
  const auto y = std::get<Array<double>>(call({{"w_block_rows", 1}}, {3, 2}).at("y"));
  EXPECT_EQ(y.data, (Numbers{128 * 7, 128 * 19, 128 * 31, 128 * 28, 128 * 76, 128 * 124}));
  EXPECT_THROW(call({{"w_block_rows", 1}}, {1, 2}), InputError);
  EXPECT_THROW(call({{"w_block_rows", nullptr}}, {3, 2}), InputError);
  EXPECT_THROW(call({{"w_block_rows", 0}}, {3, 2}), InputError);
}

// T63, T64

TEST(Fp8Gemm, T63_EmptyAndPaddedGroups) {
  const std::int64_t rows = 32, inputs = 24, outputs = 16, experts = 5, first_pad = 24;
  const Index offsets({experts + 1}, {0, 0, 8, 16, 16, 32});  // ends 0, 8, 16, 16, 32
  const Tensor weight = tensor(DType::kBF16, {experts, outputs, inputs}, integers(experts * outputs * inputs, 7, 1));
  Numbers x = integers(rows * inputs, 7, 2), dy = integers(rows * outputs, 7, 3), row_weights(rows, 0.5);
  std::fill(x.begin() + first_pad * inputs, x.end(), kNaN);
  std::fill(dy.begin() + first_pad * outputs, dy.end(), kNaN);
  std::fill(row_weights.begin() + first_pad, row_weights.end(), 0.0);
  const Tensor x_raw = tensor(DType::kBF16, {rows, inputs}, x), dy_raw = tensor(DType::kBF16, {rows, outputs}, dy);
  const Tensor kept = tensor(DType::kF32, {rows}, row_weights);
  const Tensor x_clean = without_padding(x_raw, kept), dy_clean = without_padding(dy_raw, kept);
  const GroupedFp8 grouped{};
  Array<double> y = filled({rows, outputs}, kNaN), d_x = filled({rows, inputs}, kNaN);
  Array<double> d_weight = filled({experts, outputs, inputs}, kNaN);
  grouped.forward(x_clean, offsets, weight, y);
  grouped.dgrad(dy_clean, offsets, weight, d_x);
  grouped.wgrad(dy_clean, x_clean, offsets, d_weight);
  for (const auto* result : {&y, &d_x, &d_weight})
    for (const double number : result->data) EXPECT_TRUE(std::isfinite(number));
  const std::int64_t size = outputs * inputs;
  for (const std::int64_t e : {0, 3})
    for (std::int64_t i = 0; i < size; ++i) {
      EXPECT_EQ(d_weight[e * size + i], 0.0);
      EXPECT_FALSE(std::signbit(d_weight[e * size + i]));
    }
  for (std::int64_t i = first_pad * outputs; i < y.size(); ++i) EXPECT_EQ(y[i], 0.0);
  // Padding changes nothing for the rows that are none.
  const Index without({experts + 1}, {0, 0, 8, 16, 16, first_pad});
  Array<double> d_weight_without = filled(d_weight.shape, kNaN);
  grouped.wgrad(dy_raw.rows(0, first_pad), x_raw.rows(0, first_pad), without, d_weight_without);
  EXPECT_EQ(d_weight.data, d_weight_without.data);
  EXPECT_TRUE(std::any_of(d_weight.data.begin() + 4 * size, d_weight.data.end(), [](double v) { return v != 0.0; }));
  // Rows that are only multiplied by their weight 0 reach the weight gradient.
  for (std::int64_t i = first_pad * outputs; i < rows * outputs; ++i) dy[static_cast<std::size_t>(i)] *= 0.0;
  grouped.wgrad(tensor(DType::kBF16, {rows, outputs}, dy), x_raw, offsets, d_weight);
  EXPECT_TRUE(std::isnan(d_weight[4 * size]));
  EXPECT_THROW(grouped.wgrad(dy_clean, x_clean, Index({2}, {0, 31}), d_weight), InputError);
}

TEST(Fp8Gemm, T64_GroupedEdgeSizes) {
  const std::vector<std::int64_t> sizes{0, 1, 8, 63, 64, 65, 127, 128, 129};
  const std::int64_t experts = static_cast<std::int64_t>(sizes.size()), inputs = 20, outputs = 12, zero_channel = 7;
  Index offsets({experts + 1});
  for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] = offsets[e] + sizes[static_cast<std::size_t>(e)];
  const std::int64_t rows = offsets[experts];
  Numbers x = integers(rows * inputs, 7, 1);
  for (std::int64_t row = 0; row < rows; ++row) x[static_cast<std::size_t>(row * inputs + zero_channel)] = 0.0;
  const Numbers dy = integers(rows * outputs, 7, 2), w = integers(experts * outputs * inputs, 7, 3);
  const Tensor x_rows = tensor(DType::kBF16, {rows, inputs}, x), dy_rows = tensor(DType::kBF16, {rows, outputs}, dy);
  const Tensor weight = tensor(DType::kBF16, {experts, outputs, inputs}, w);
  // Whole numbers up to 7 are exact in both formats: plain integer products are the truth.
  Array<double> y_true({rows, outputs}), d_x_true({rows, inputs}), d_weight_true({experts, outputs, inputs});
  for (std::int64_t e = 0; e < experts; ++e)
    for (std::int64_t row = offsets[e]; row < offsets[e + 1]; ++row)
      for (std::int64_t n = 0; n < outputs; ++n)
        for (std::int64_t k = 0; k < inputs; ++k) {
          const double g = dy[static_cast<std::size_t>(row * outputs + n)];
          const double v = x[static_cast<std::size_t>(row * inputs + k)];
          const double m = w[static_cast<std::size_t>((e * outputs + n) * inputs + k)];
          y_true.at(row, n) += v * m;
          d_x_true.at(row, k) += g * m;
          d_weight_true.at(e, n, k) += g * v;
        }
  const GroupedFp8 grouped{};
  for (int run = 0; run < 20; ++run) {
    Array<double> y = filled(y_true.shape, kNaN), d_x = filled(d_x_true.shape, kNaN);
    Array<double> d_weight = filled(d_weight_true.shape, kNaN);
    grouped.forward(x_rows, offsets, weight, y);
    grouped.dgrad(dy_rows, offsets, weight, d_x);
    grouped.wgrad(dy_rows, x_rows, offsets, d_weight);
    EXPECT_EQ(y.data, y_true.data);
    EXPECT_EQ(d_x.data, d_x_true.data);
    EXPECT_EQ(d_weight.data, d_weight_true.data);
  }
  // The scale of an all-zero channel is of no consequence.
  const BlockRecipe recipe;
  const Fp8Copies dy_copies = quantize_copies(dy_rows, block_quantizer(recipe, QuantizerRole::kBackwardGradient));
  Fp8Copies x_copies = quantize_copies(x_rows, block_quantizer(recipe, QuantizerRole::kForwardInput));
  const Array<double> with_one = fp8_wgrad<double>(dy_copies, x_copies);
  const std::int64_t blocks = x_copies.columnwise.grid[1];
  for (std::int64_t b = 0; b < blocks; ++b) {
    float& scale = x_copies.columnwise.scale_inv[static_cast<std::size_t>(zero_channel * blocks + b)];
    EXPECT_EQ(scale, 1.0F);
    scale = 1e-30F;
  }
  EXPECT_EQ(with_one.data, fp8_wgrad<double>(dy_copies, x_copies).data);
  for (std::int64_t n = 0; n < outputs; ++n) EXPECT_EQ(with_one.at(n, zero_channel), 0.0);
}

// T65

/// One product 2^14 at `place`, all others 1.
Numbers one_large(std::int64_t n, std::int64_t place) {
  Numbers result(static_cast<std::size_t>(n), 1.0);
  result[static_cast<std::size_t>(place)] = 128.0;
  return result;
}

double executed(const Numbers& x, std::int64_t block, std::optional<std::int64_t> fraction_bits) {
  const ContextScope scope(device(1));
  const auto n = static_cast<std::int64_t>(x.size()), blocks = (n + block - 1) / block;
  const Array<Sampled> row = sampled(x, {1, n}),
                       ones = sampled(Numbers(static_cast<std::size_t>(blocks), 1.0), {1, blocks});
  return linear_fp8(row, ones, row, ones, block, fraction_bits)[0].v;
}

TEST(Fp8Gemm, T65_Accumulator) {
  const Numbers x = one_large(128, 0);
  const auto n = static_cast<std::int64_t>(x.size());
  EXPECT_EQ(dot(x.data(), 1, x.data(), 1, n), 16511.0);
  EXPECT_EQ(tensor_core_sum(x.data(), x.data(), n, kFourteenBits), 16384.0);
  EXPECT_EQ(tensor_core_sum(x.data(), x.data(), n, kTwentyTwoBits), 16511.0);
  EXPECT_EQ(executed(x, 128, std::nullopt), 16511.0);
  EXPECT_EQ(executed(x, 128, kFourteenBits), 16384.0);
  EXPECT_EQ(executed(x, 128, kTwentyTwoBits), 16511.0);
  // The ones that were added before the 32 products with the large one are kept; the range [16384, 16511] is never
  // left.
  for (std::int64_t place = 0; place < 128; ++place)
    EXPECT_EQ(executed(one_large(128, place), 128, kFourteenBits), static_cast<double>(16384 + place / 32 * 32));
  // Cut towards zero, not rounded: 1.75 below a last bit of 2 is nothing, of either sign.
  for (const double sign : {1.0, -1.0}) {
    const Numbers v{128.0, 1.75, 1.75}, w{128.0 * sign, sign, sign};
    EXPECT_EQ(tensor_core_sum(v.data(), w.data(), 3, kFourteenBits), 16384.0 * sign);
    EXPECT_EQ(tensor_core_sum(v.data(), w.data(), 3, kTwentyTwoBits), 16387.5 * sign);
  }
}

TEST(Fp8Gemm, T65_Promotion) {
  const double single_group = 16511.0 - 16384.0;
  Numbers four;
  for (int group = 0; group < 4; ++group)
    for (const double number : one_large(128, 0)) four.push_back(number);
  EXPECT_EQ(executed(four, 128, kFourteenBits), 4 * 16384.0);
  EXPECT_EQ(4 * 16511.0 - executed(four, 128, kFourteenBits), 4 * single_group);
  EXPECT_EQ(executed(four, 128, kTwentyTwoBits), 4 * 16511.0);
  // One large product in 512: with promotion its group alone is off, without it the error exceeds four groups'.
  const Numbers one = one_large(512, 0);
  EXPECT_EQ(16384.0 + 511 - executed(one, 128, kFourteenBits), single_group);
  EXPECT_GT(16384.0 + 511 - executed(one, 512, kFourteenBits), 4 * single_group);
}

TEST(Fp8Gemm, T65_BoundCoversWhatIsExecuted) {
  const std::int64_t n = 512, blocks = 4;
  const Array<double> ones = filled({1, blocks}, 1.0);
  double largest_share = 0.0;
  for (std::uint32_t seed = 1; seed <= 40; ++seed)
    for (const Format* format : {&e4m3(), &e5m2()})
      for (const std::int64_t fraction_bits : {kFourteenBits, kTwentyTwoBits}) {
        Numbers x, w;
        for (const double code : integers(n, 59, seed))
          x.push_back(decode(*format, static_cast<std::uint32_t>(code + 60)));
        for (const double code : integers(n, 59, seed + 100))
          w.push_back(
              decode(*format, static_cast<std::uint32_t>(code + 60) | (static_cast<int>(code) % 2 ? 0x80U : 0U)));
        Array<Bound> x_bound({1, n}), w_bound({1, n}), one({1, blocks});
        for (std::int64_t i = 0; i < n; ++i) {
          x_bound[i] = x[static_cast<std::size_t>(i)];
          w_bound[i] = w[static_cast<std::size_t>(i)];
        }
        for (Bound& scale : one.data) scale = 1.0;
        const ContextScope scope(device(seed));
        const Array<Sampled> scales = sampled(ones.data, {1, blocks});
        const double device_sum =
            linear_fp8(sampled(x, {1, n}), scales, sampled(w, {1, n}), scales, 128, fraction_bits)[0].v;
        const Bound bound = linear_fp8(x_bound, one, w_bound, one, 128, fraction_bits)[0];
        EXPECT_LE(std::abs(device_sum - bound.v), bound.e);
        largest_share = std::max(largest_share, std::abs(device_sum - bound.v) / bound.e);
      }
  EXPECT_GT(largest_share, 0.0);
}

// T68

TEST(Fp8Gemm, T68_ExactIntegers) {
  const std::int64_t rows = 24, columns = 24, inner = 512;
  Numbers x = integers(rows * inner, 8, 1), w = integers(columns * inner, 8, 2);
  std::fill_n(x.begin(), inner, 8.0);  // the largest sum there is: 512 * 64 = 32768 < 2^24
  std::fill_n(w.begin(), inner, 8.0);
  Numbers sums;
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t n = 0; n < columns; ++n) {
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < inner; ++k)
        sum += static_cast<std::int64_t>(x[static_cast<std::size_t>(m * inner + k)]) *
               static_cast<std::int64_t>(w[static_cast<std::size_t>(n * inner + k)]);
      sums.push_back(static_cast<double>(sum));
    }
  EXPECT_EQ(sums[0], 32768.0);
  EXPECT_EQ(linear(Array<double>({rows, inner}, x), Array<double>({columns, inner}, w)).data, sums);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const ContextScope scope(device(seed));
    const Array<Sampled> y = linear(sampled(x, {rows, inner}), sampled(w, {columns, inner}));
    for (std::int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i].v, sums[static_cast<std::size_t>(i)]);
  }
  const ContextScope scope(device(1, {bf16().unit_roundoff, &bf16()}));
  const Array<Sampled> y = linear(sampled(x, {rows, inner}), sampled(w, {columns, inner}));
  std::int64_t lost = 0;
  for (std::int64_t i = 0; i < y.size(); ++i) {
    const double sum = sums[static_cast<std::size_t>(i)];
    const bool odd = std::fmod(sum, 2.0) != 0.0;
    if (std::abs(sum) <= 256) {
      EXPECT_EQ(y[i].v, sum);
    } else if (odd) {
      EXPECT_NE(y[i].v, sum);
      ++lost;
    }
  }
  EXPECT_GT(lost, 0);
}

}  // namespace
}  // namespace assay::reference
