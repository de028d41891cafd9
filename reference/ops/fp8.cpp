#include "reference/ops/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include "reference/ops/fp8_accumulator.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

constexpr std::uint32_t kSignAndExponent = 0xFF800000U;  // of f32

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void check_block(const std::string& op, std::int64_t side) {
  if (side < 1) throw InputError(op + ": block side", std::to_string(side), "1 or more");
}

template <class T>
void check_grid(const std::string& operand, const Array<T>& scales, const Shape& expected) {
  if (scales.shape != expected) throw InputError(operand, assay::to_string(scales.shape), assay::to_string(expected));
}

const Format& format_named(const std::string& attribute, const std::string& name,
                           const std::vector<const Format*>& allowed) {
  std::string names;
  for (const Format* format : allowed) {
    if (format->name == name) return *format;
    names += (names.empty() ? "" : ", ") + std::string(format->name);
  }
  throw InputError(attribute, name, names);
}

const Format& input_format(const Tensor& x) {
  if (x.dtype() != DType::kBF16 && x.dtype() != DType::kF16 && x.dtype() != DType::kF32)
    throw InputError("quantize_block: x", std::string(name_of(x.dtype())), "BF16, F16 or F32");
  return *format_of(x.dtype());
}

/// The largest magnitude; NaN if there is one.
float block_maximum(const std::vector<float>& x, std::int64_t columns, std::int64_t row, std::int64_t row_end,
                    std::int64_t column, std::int64_t column_end) {
  float amax = 0.0F;
  for (std::int64_t i = row; i < row_end; ++i)
    for (std::int64_t j = column; j < column_end; ++j) {
      const float magnitude = std::abs(x[static_cast<std::size_t>(i * columns + j)]);
      if (!(magnitude <= amax)) amax = std::isnan(amax) ? amax : magnitude;
    }
  return amax;
}

/// NaN gives the positive quiet NaN, whatever sign the machine gives to 0 * inf.
std::int64_t code_of(float x, float scale, const Format& format) {
  const float product = x * scale;
  const double value = std::isnan(product) ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(product);
  return static_cast<std::int64_t>(encode(format, value, Overflow::kSaturate));
}

template <class T>
QuantizeOptions attributes_of(const Call<T>& call, const std::string& op) {
  QuantizeOptions options;
  options.format = &format_named(op + ": format", call.text("format"), {&e4m3(), &e5m2()});
  options.power_of_two = call.flag("power_of_two");
  options.amax_epsilon = static_cast<float>(call.real("amax_epsilon"));
  options.infinite_amax_scale = static_cast<float>(call.real("infinite_amax_scale"));
  return options;
}

template <class T>
Array<T> widened(const std::vector<float>& values, const Shape& shape) {
  Array<T> result(shape);
  for (std::int64_t i = 0; i < result.size(); ++i)
    result[i] = T(static_cast<double>(values[static_cast<std::size_t>(i)]));
  return result;
}

}  // namespace

template <class T>
Array<T> dequantize_block(const Array<T>& codes, const Array<T>& scales, std::int64_t block_rows,
                          std::int64_t block_columns) {
  check_block("dequantize_block", std::min(block_rows, block_columns));
  const std::int64_t rows = codes.dim(0), columns = codes.dim(1);
  check_grid("scales", scales, {ceil_div(rows, block_rows), ceil_div(columns, block_columns)});
  Array<T> y(codes.shape);
  parallel_for(rows, [&](std::int64_t i) {
    for (std::int64_t j = 0; j < columns; ++j)
      y.at(i, j) = round_at(point("dequantize_block/y"), codes.at(i, j) * scales.at(i / block_rows, j / block_columns));
  });
  return y;
}

template <class T>
Array<T> product_fp8(const Array<T>& x_codes, const Array<T>& x_scales, const Array<T>& w_codes,
                     const Array<T>& w_scales, std::int64_t block, std::int64_t w_block_rows,
                     std::optional<std::int64_t> fraction_bits) {
  check_block("linear_fp8", std::min(block, w_block_rows));
  const std::int64_t rows = x_codes.dim(0), inner = x_codes.dim(1), columns = w_codes.dim(0);
  const std::int64_t blocks = ceil_div(inner, block);
  ASSAY_CHECK(w_codes.dim(1) == inner);
  check_grid("x_scales", x_scales, {rows, blocks});
  check_grid("w_scales", w_scales, {ceil_div(columns, w_block_rows), blocks});
  Array<T> y({rows, columns});
  parallel_for(rows, [&](std::int64_t m) {
    std::vector<T> terms(static_cast<std::size_t>(blocks));
    for (std::int64_t n = 0; n < columns; ++n) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        const std::int64_t first = b * block, count = std::min(block, inner - first);
        const T sum =
            accumulated_dot(x_codes.row(m, inner) + first, w_codes.row(n, inner) + first, count, fraction_bits);
        terms[static_cast<std::size_t>(b)] = sum * x_scales.at(m, b);
      }
      y.at(m, n) = dot(terms.data(), 1, w_scales.row(n / w_block_rows, blocks), 1, blocks);
    }
  });
  return y;
}

template <class T>
Array<T> linear_fp8(const Array<T>& x_codes, const Array<T>& x_scales, const Array<T>& w_codes,
                    const Array<T>& w_scales, std::int64_t block, std::optional<std::int64_t> fraction_bits,
                    std::optional<std::int64_t> w_block_rows) {
  Array<T> y = product_fp8(x_codes, x_scales, w_codes, w_scales, block, w_block_rows.value_or(block), fraction_bits);
  for (T& value : y.data) value = round_at(point("linear_fp8/y"), value);
  return y;
}

QuantizeOptions options_of(const BlockQuantizer& quantizer) {
  QuantizeOptions options;
  options.format = quantizer.format;
  options.power_of_two = quantizer.power_of_two;
  options.amax_epsilon = static_cast<float>(quantizer.amax_epsilon);
  return options;
}

float fp8_scale(float amax, const QuantizeOptions& options) {
  if (std::isnan(amax)) return 1.0F;
  if (std::isinf(amax)) return options.infinite_amax_scale;
  const float floored = std::max(amax, options.amax_epsilon);
  if (floored == 0.0F) return 1.0F;
  float scale = static_cast<float>(options.format->max_finite) / floored;
  if (std::isinf(scale)) scale = static_cast<float>(options.input_format->max_finite);
  return options.power_of_two ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) & kSignAndExponent) : scale;
}

Quantized quantize_block(const Tensor& x, std::int64_t block_rows, std::int64_t block_columns,
                         QuantizeOptions options) {
  check_block("quantize_block", std::min(block_rows, block_columns));
  options.input_format = &input_format(x);
  ASSAY_CHECK(x.shape().size() == 2);
  const std::int64_t rows = x.shape()[0], columns = x.shape()[1];
  std::vector<float> values(static_cast<std::size_t>(x.size()));
  for (std::int64_t i = 0; i < x.size(); ++i) values[static_cast<std::size_t>(i)] = static_cast<float>(x.real(i));
  Quantized result{Index(x.shape()), {}, {ceil_div(rows, block_rows), ceil_div(columns, block_columns)}};
  result.scale_inv.resize(static_cast<std::size_t>(element_count(result.grid)));
  parallel_for(element_count(result.grid), [&](std::int64_t block) {
    const std::int64_t row = block / result.grid[1] * block_rows, column = block % result.grid[1] * block_columns;
    const std::int64_t row_end = std::min(row + block_rows, rows);
    const std::int64_t column_end = std::min(column + block_columns, columns);
    const float scale = fp8_scale(block_maximum(values, columns, row, row_end, column, column_end), options);
    result.scale_inv[static_cast<std::size_t>(block)] = 1.0F / scale;
    for (std::int64_t i = row; i < row_end; ++i)
      for (std::int64_t j = column; j < column_end; ++j)
        result.codes.at(i, j) = code_of(values[static_cast<std::size_t>(i * columns + j)], scale, *options.format);
  });
  return result;
}

template <class T>
void add_fp8_ops(OpTable<T>& table) {
  table["dequantize_block"] = [](const Call<T>& call) {
    return Results<T>{{"y", dequantize_block(call.in("codes"), call.in("scales"), call.integer("block_rows"),
                                             call.integer("block_columns"))}};
  };
  table["linear_fp8"] = [](const Call<T>& call) {
    const auto count = [&](const std::string& attribute) -> std::optional<std::int64_t> {
      const std::optional<double> value = call.optional_real(attribute);
      if (!value) return std::nullopt;
      if (*value < 1) throw InputError("linear_fp8: " + attribute, std::to_string(*value), "1 or more");
      return static_cast<std::int64_t>(*value);
    };
    return Results<T>{
        {"y", linear_fp8(call.in("x_codes"), call.in("x_scales"), call.in("w_codes"), call.in("w_scales"),
                         call.integer("block"), count("accumulator_fraction_bits"), count("w_block_rows"))}};
  };
  table["quantize_block"] = [](const Call<T>& call) {
    const Tensor& x = call.tensor("x");
    const std::int64_t block_rows = call.integer("block_rows"), block_columns = call.integer("block_columns");
    const QuantizeOptions options = attributes_of(call, "quantize_block");
    Results<T> results;
    const auto add = [&](const Tensor& values, const std::string& suffix) {
      Quantized copy = quantize_block(values, block_rows, block_columns, options);
      results["codes" + suffix] = std::move(copy.codes);
      results["scale_inv" + suffix] = widened<T>(copy.scale_inv, copy.grid);
    };
    add(x, "");
    if (call.flag("columnwise")) add(x.permuted({1, 0}), "_columnwise");
    return results;
  };
  table["fp8_scale"] = [](const Call<T>& call) {
    QuantizeOptions options = attributes_of(call, "fp8_scale");
    options.input_format =
        &format_named("fp8_scale: input_format", call.text("input_format"), {&bf16(), &fp16(), &fp32()});
    const Tensor& amax = call.tensor("amax");
    std::vector<float> scale, scale_inv, floored;
    for (std::int64_t i = 0; i < amax.size(); ++i) {
      scale.push_back(fp8_scale(static_cast<float>(amax.real(i)), options));
      scale_inv.push_back(1.0F / scale.back());
      floored.push_back(std::max(static_cast<float>(amax.real(i)), options.amax_epsilon));
    }
    return Results<T>{{"scale", widened<T>(scale, amax.shape())},
                      {"scale_inv", widened<T>(scale_inv, amax.shape())},
                      {"floored", widened<T>(floored, amax.shape())}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                      \
  template Array<T> dequantize_block(const Array<T>&, const Array<T>&, std::int64_t, std::int64_t);               \
  template Array<T> product_fp8(const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&, std::int64_t, \
                                std::int64_t, std::optional<std::int64_t>);                                       \
  template Array<T> linear_fp8(const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&, std::int64_t,  \
                               std::optional<std::int64_t>, std::optional<std::int64_t>);                         \
  template void add_fp8_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
