#include "reference/ops/fp8_gemm.h"

#include <algorithm>

#include "reference/ops/layout.h"

namespace assay::reference {
namespace {

constexpr std::int64_t kBlock = 128;

template <class T>
Array<T> values(const Quantized& copy, const Format& format) {
  Array<T> result(copy.codes.shape);
  for (std::int64_t i = 0; i < result.size(); ++i)
    result[i] = T(decode(format, static_cast<std::uint32_t>(copy.codes[i])));
  return result;
}

template <class T>
Array<T> factors(const Quantized& copy) {
  Array<T> result(copy.grid);
  for (std::int64_t i = 0; i < result.size(); ++i)
    result[i] = T(static_cast<double>(copy.scale_inv[static_cast<std::size_t>(i)]));
  return result;
}

/// a b^T of two copies that are contiguous along the contraction.
template <class T>
Array<T> product(const Quantized& a, const Format& a_format, const Quantized& b, const Format& b_format,
                 std::int64_t b_block_rows, std::optional<std::int64_t> fraction_bits) {
  return product_fp8(values<T>(a, a_format), factors<T>(a), values<T>(b, b_format), factors<T>(b), kBlock, b_block_rows,
                     fraction_bits);
}

/// Matrix e of a weight [E, N, K].
Tensor expert(const Tensor& weight, std::int64_t e) {
  return weight.rows(e, e + 1).reshaped({weight.shape()[1], weight.shape()[2]});
}

template <class T>
void check_output(const std::string& name, const Array<T>& output, const Shape& expected) {
  if (output.shape != expected) throw InputError(name, assay::to_string(output.shape), assay::to_string(expected));
}

/// Calls work(e, begin, end) for every expert.
template <class Work>
void for_groups(const Index& offsets, std::int64_t rows, const Work& work) {
  check_boundaries(offsets, rows, "offsets", Empty::kAllowed);
  for (std::int64_t e = 0; e + 1 < offsets.size(); ++e) work(e, offsets[e], offsets[e + 1]);
}

}  // namespace

Fp8Copies quantize_copies(const Tensor& x, const BlockQuantizer& quantizer) {
  const QuantizeOptions options = options_of(quantizer);
  return {quantizer.format, quantize_block(x, quantizer.block_rows, quantizer.block_columns, options),
          quantize_block(x.permuted({1, 0}), quantizer.block_rows, quantizer.block_columns, options)};
}

template <class T>
Array<T> fp8_forward(const Fp8Copies& x, const Fp8Copies& weight, std::optional<std::int64_t> fraction_bits) {
  Array<T> y = product<T>(x.rowwise, *x.format, weight.rowwise, *weight.format, kBlock, fraction_bits);
  for (T& value : y.data) value = round_at(point("linear_fp8/y"), value);
  return y;
}

template <class T>
Array<T> fp8_dgrad(const Fp8Copies& dy, const Fp8Copies& weight, std::optional<std::int64_t> fraction_bits) {
  Array<T> d_x = product<T>(dy.rowwise, *dy.format, weight.columnwise, *weight.format, kBlock, fraction_bits);
  for (T& value : d_x.data) value = round_at(point("linear.backward/d_x"), value);
  return d_x;
}

template <class T>
Array<T> fp8_wgrad(const Fp8Copies& dy, const Fp8Copies& x, std::optional<std::int64_t> fraction_bits) {
  return product<T>(dy.columnwise, *dy.format, x.columnwise, *x.format, 1, fraction_bits);
}

Tensor without_padding(const Tensor& x, const Tensor& row_weights) {
  ASSAY_CHECK(x.shape().size() == 2);
  const std::int64_t rows = x.shape()[0], columns = x.shape()[1];
  if (row_weights.shape() != Shape{rows})
    throw InputError("row weights", assay::to_string(row_weights.shape()), assay::to_string(Shape{rows}));
  std::vector<double> kept = x.reals();
  for (std::int64_t row = 0; row < rows; ++row)
    if (row_weights.real(row) == 0.0) std::fill_n(kept.begin() + row * columns, columns, 0.0);
  return Tensor::from_reals(x.dtype(), x.shape(), kept);
}

template <class T>
void GroupedFp8::forward(const Tensor& x, const Index& offsets, const Tensor& weight, Array<T>& y) const {
  const std::int64_t outputs = weight.shape()[1];
  check_output("y", y, {x.shape()[0], outputs});
  for_groups(offsets, x.shape()[0], [&](std::int64_t e, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    const Array<T> group = fp8_forward<T>(
        quantize_copies(x.rows(begin, end), block_quantizer(recipe, QuantizerRole::kForwardInput)),
        quantize_copies(expert(weight, e), block_quantizer(recipe, QuantizerRole::kForwardWeight)), fraction_bits);
    std::copy(group.data.begin(), group.data.end(), y.row(begin, outputs));
  });
}

template <class T>
void GroupedFp8::dgrad(const Tensor& dy, const Index& offsets, const Tensor& weight, Array<T>& d_x) const {
  const std::int64_t inputs = weight.shape()[2];
  check_output("d_x", d_x, {dy.shape()[0], inputs});
  for_groups(offsets, dy.shape()[0], [&](std::int64_t e, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    const Array<T> group = fp8_dgrad<T>(
        quantize_copies(dy.rows(begin, end), block_quantizer(recipe, QuantizerRole::kBackwardGradient)),
        quantize_copies(expert(weight, e), block_quantizer(recipe, QuantizerRole::kForwardWeight)), fraction_bits);
    std::copy(group.data.begin(), group.data.end(), d_x.row(begin, inputs));
  });
}

template <class T>
void GroupedFp8::wgrad(const Tensor& dy, const Tensor& x, const Index& offsets, Array<T>& d_weight) const {
  const std::int64_t size = dy.shape()[1] * x.shape()[1];
  check_output("d_weight", d_weight, {offsets.size() - 1, dy.shape()[1], x.shape()[1]});
  for_groups(offsets, dy.shape()[0], [&](std::int64_t e, std::int64_t begin, std::int64_t end) {
    if (begin == end) {
      std::fill_n(d_weight.row(e, size), size, T(0.0));
      return;
    }
    const Array<T> group = fp8_wgrad<T>(
        quantize_copies(dy.rows(begin, end), block_quantizer(recipe, QuantizerRole::kBackwardGradient)),
        quantize_copies(x.rows(begin, end), block_quantizer(recipe, QuantizerRole::kForwardInput)), fraction_bits);
    std::copy(group.data.begin(), group.data.end(), d_weight.row(e, size));
  });
}

#define ASSAY_INSTANTIATE(T)                                                                      \
  template Array<T> fp8_forward(const Fp8Copies&, const Fp8Copies&, std::optional<std::int64_t>); \
  template Array<T> fp8_dgrad(const Fp8Copies&, const Fp8Copies&, std::optional<std::int64_t>);   \
  template Array<T> fp8_wgrad(const Fp8Copies&, const Fp8Copies&, std::optional<std::int64_t>);   \
  template void GroupedFp8::forward(const Tensor&, const Index&, const Tensor&, Array<T>&) const; \
  template void GroupedFp8::dgrad(const Tensor&, const Index&, const Tensor&, Array<T>&) const;   \
  template void GroupedFp8::wgrad(const Tensor&, const Tensor&, const Index&, Array<T>&) const;
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
