// The three products of a linear layer over block-quantised operands, and of grouped experts. Sources:
// shared/spec/megatron.md 5.1 (which copy each product reads), public reports T62 to T64.
//
//   forward  y  [T, N] = x row-wise        (tiles along K) by weight row-wise    (128x128)
//   dgrad    dx [T, K] = dy row-wise       (tiles along N) by weight column-wise (128x128)
//   wgrad    dw [N, K] = dy column-wise    (tiles along T) by x column-wise      (tiles along T): 1x128 by 1x128
#pragma once

#include <optional>

#include "cases/fp8.h"
#include "reference/ops/fp8.h"

namespace assay::reference {

/// Both copies of an operand [R, C], each quantised from the operand itself: `columnwise` [C, R] is the quantisation of
/// the transpose. For square blocks that is the transpose of `rowwise`, for 1x128 tiles it is not.
struct Fp8Copies {
  const Format* format = &e4m3();
  Quantized rowwise;
  Quantized columnwise;
};

/// x as quantize_block.
Fp8Copies quantize_copies(const Tensor& x, const BlockQuantizer& quantizer);

/// y = x W^T, rounded once (linear_fp8/y): x [T, K], weight [N, K] -> [T, N]. `fraction_bits` as in product_fp8.
template <class T>
Array<T> fp8_forward(const Fp8Copies& x, const Fp8Copies& weight,
                     std::optional<std::int64_t> fraction_bits = std::nullopt);

/// dx = dy W, rounded once (linear.backward/d_x): dy [T, N], weight [N, K] -> [T, K].
template <class T>
Array<T> fp8_dgrad(const Fp8Copies& dy, const Fp8Copies& weight,
                   std::optional<std::int64_t> fraction_bits = std::nullopt);

/// dw = dy^T x, in f32 without a rounding: dy [T, N], x [T, K] -> [N, K].
template <class T>
Array<T> fp8_wgrad(const Fp8Copies& dy, const Fp8Copies& x, std::optional<std::int64_t> fraction_bits = std::nullopt);

/// Rows of x [M, K] whose weight [M] is 0 become zeros, before anything reads them: a row that is only padding may hold
/// anything, and 0 * NaN is NaN.
Tensor without_padding(const Tensor& x, const Tensor& row_weights);

/// Grouped products: rows offsets[e] .. offsets[e+1] of x [M, K] and dy [M, N] belong to expert e, whose tiles along
/// the tokens start at its first row; offsets [E+1], weight [E, N, K]. Each overwrites its output, whatever was in it;
/// an empty group has no rows, and its weight gradient is exactly 0. Throws InputError for offsets that do not start at
/// 0, decrease, or do not end at M.
struct GroupedFp8 {
  BlockRecipe recipe;
  std::optional<std::int64_t> fraction_bits;

  template <class T>
  void forward(const Tensor& x, const Index& offsets, const Tensor& weight, Array<T>& y) const;  ///< y [M, N]
  template <class T>
  void dgrad(const Tensor& dy, const Index& offsets, const Tensor& weight, Array<T>& d_x) const;  ///< d_x [M, K]
  template <class T>
  void wgrad(const Tensor& dy, const Tensor& x, const Index& offsets, Array<T>& d_weight) const;  ///< [E, N, K]
};

}  // namespace assay::reference
