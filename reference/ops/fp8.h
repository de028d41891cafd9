// Block-scaled FP8. Sources: shared/spec/model.md 1 (dequantisation), megatron.md 5.1, 5.2. The three products of a
// layer are composed in reference/ops/fp8_gemm.h.
#pragma once

#include <string>

#include "cases/formats.h"
#include "cases/fp8.h"
#include "reference/call.h"

namespace assay::reference {

/// y[i, j] = codes[i, j] * scales[i / block_rows, j / block_columns], one rounding: codes [R, C] as numbers, scales
/// [ceil(R / block_rows), ceil(C / block_columns)] -> [R, C]. Blocks at the lower and right edge are cropped. Throws
/// InputError for a grid of another size or a block side below 1.
template <class T>
Array<T> dequantize_block(const Array<T>& codes, const Array<T>& scales, std::int64_t block_rows,
                          std::int64_t block_columns);

/// y[m, n] = sum over K blocks b of x_scales[m, b] * w_scales[n / w_block_rows, b] * (x_codes[m, b] . w_codes[n, b]),
/// without a rounding point: x_codes [M, K], x_scales [M, ceil(K / block)], w_codes [N, K], w_scales
/// [ceil(N / w_block_rows), ceil(K / block)] -> [M, N], zeros for K = 0. Throws InputError for scales of another size
/// or a block below 1. A device may add the products of a block in an accumulator of few bits: with `fraction_bits`
/// (see fp8_accumulator.h) Bound permits that and Sampled executes it; without it the block sums are those of the
/// compute format.
template <class T>
Array<T> product_fp8(const Array<T>& x_codes, const Array<T>& x_scales, const Array<T>& w_codes,
                     const Array<T>& w_scales, std::int64_t block, std::int64_t w_block_rows,
                     std::optional<std::int64_t> fraction_bits = std::nullopt);

/// The same with one rounding, and w_block_rows = block unless given.
template <class T>
Array<T> linear_fp8(const Array<T>& x_codes, const Array<T>& x_scales, const Array<T>& w_codes,
                    const Array<T>& w_scales, std::int64_t block,
                    std::optional<std::int64_t> fraction_bits = std::nullopt,
                    std::optional<std::int64_t> w_block_rows = std::nullopt);

struct QuantizeOptions {
  const Format* format = &e4m3();
  bool power_of_two = true;              ///< scale truncated to a power of two
  float amax_epsilon = 0.0F;             ///< floor of the block maximum
  const Format* input_format = &fp32();  ///< its largest finite value replaces an infinite scale
  float infinite_amax_scale = 1.0F;      ///< scale of a block with an infinity (0 in a Python reference of TE)
};

/// What the quantiser of an operand asks for.
QuantizeOptions options_of(const BlockQuantizer& quantizer);

/// The factor of a block of maximum `amax`, in f32: largest(format) / max(amax, amax_epsilon), rounded once, truncated
/// to a power of two if asked. An overflow gives the largest finite value of the input format; amax 0 or NaN gives 1.
float fp8_scale(float amax, const QuantizeOptions& options);

struct Quantized {
  Index codes;                   ///< [R, C], the FP8 bytes of f32(x * scale), nearest even, saturated; NaN stays NaN
  std::vector<float> scale_inv;  ///< f32(1 / scale) of each block, row-major
  Shape grid;                    ///< [ceil(R / block_rows), ceil(C / block_columns)]
};

/// Quantises x [R, C] (BF16, F16 or F32; otherwise InputError), whose dtype is the input format. Row-wise tiles are 1 x
/// 128; the column-wise copy of such tiles is the quantisation of the transpose, not the transpose of the codes.
Quantized quantize_block(const Tensor& x, std::int64_t block_rows, std::int64_t block_columns, QuantizeOptions options);

template <class T>
void add_fp8_ops(OpTable<T>& table);

}  // namespace assay::reference
