#include "cases/ops/linear.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& linear_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "linear",
       .summary = "y = x W^T + b",
       .attributes = {},
       .inputs =
           {
               real("x", "... K", "input rows"),
               real("weight", "N K", "one row per output channel"),
               optional_real("bias", "N", "added to the f32 sum"),
           },
       .outputs =
           {
               real("y", "... N", "output rows"),
           },
       .source = "model.md 0 (notation); megatron.md 7"},
      {.name = "head_linear",
       .summary = "y[t,h] = W[h] q[t,h]: one matrix per head (absorbed MLA, both sides)",
       .attributes = {},
       .inputs =
           {
               real("q", "T H Dq", "input per head"),
               real("weight", "H Dk Dq", "one matrix per head"),
           },
       .outputs =
           {
               real("y", "T H Dk", "output per head"),
           },
       .source = "model.md 7.1; megatron.md 4"},
      {.name = "grouped_linear",
       .summary = "rows offsets[e] .. offsets[e+1] of x times the weight of expert e",
       .attributes = {},
       .inputs =
           {
               real("x", "M K", "rows in expert order"),
               index("offsets", "E+1",
                     "first row of each expert, nondecreasing from 0 to M; empty groups give nothing"),
               real("weight", "E N K", "one matrix per expert"),
           },
       .outputs =
           {
               real("y", "M N", "rows in expert order"),
           },
       .source = "model.md 8"},
      {.name = "dequantize_block",
       .summary = "y = code * scale of its block",
       .attributes =
           {
               with_default("block_rows", kInteger, 128, "rows of a scale block"),
               with_default("block_columns", kInteger, 128, "columns of a scale block"),
           },
       .inputs =
           {
               real("codes", "R C", "numbers of an FP8 dtype"),
               real("scales", "Rb=ceil(R/block_rows) Cb=ceil(C/block_columns)",
                    "factor of each block (weight_scale_inv)"),
           },
       .outputs =
           {
               real("y", "R C", "numbers"),
           },
       .source = "model.md 1 (dequantisation)"},
      {.name = "quantize_block",
       .summary = "FP8 codes with one scale per block",
       .attributes =
           {
               with_default("block_rows", kInteger, 1, "rows of a scale block (1 for activations, 128 for weights)"),
               with_default("block_columns", kInteger, 128, "columns of a scale block"),
               with_default("format", kText, "e4m3", "e4m3 or e5m2"),
               with_default("power_of_two", kBool, true, "scales truncated to powers of two; false: f32 scales"),
               with_default("amax_epsilon", kReal, 0.0, "floor of the block maximum"),
               with_default("infinite_amax_scale", kReal, 1.0,
                            "scale of a block with an infinity (0 in TE's Python reference)"),
               with_default("columnwise", kBool, false,
                            "true: also the copy for products that contract over R, quantised from x itself"),
           },
       .inputs =
           {
               real("x", "R C",
                    "numbers to quantise, BF16, F16 or F32; an infinite scale becomes the largest of the dtype"),
           },
       .outputs =
           {
               index("codes", "R C", "the FP8 bytes"),
               real("scale_inv", "Rb=ceil(R/block_rows) Cb=ceil(C/block_columns)",
                    "dequantisation factor of each block, f32"),
               {"codes_columnwise", "C R", OperandKind::kIndex, true, "the bytes of x transposed, if columnwise"},
               optional_real("scale_inv_columnwise", "Ct=ceil(C/block_rows) Rt=ceil(R/block_columns)",
                             "factor of each block of x transposed, if columnwise"),
           },
       .source = "megatron.md 5.1"},
      {.name = "fp8_scale",
       .summary = "quantisation scale of a block from its largest magnitude",
       .attributes =
           {
               with_default("format", kText, "e4m3", "e4m3 or e5m2"),
               with_default("power_of_two", kBool, true, "scales truncated to powers of two; false: f32 scales"),
               with_default("amax_epsilon", kReal, 0.0, "floor of the maximum"),
               with_default("infinite_amax_scale", kReal, 1.0, "scale of an infinite maximum"),
               with_default("input_format", kText, "fp32",
                            "bf16, fp16 or fp32: its largest finite value replaces an infinite scale"),
           },
       .inputs =
           {
               real("amax", "N", "largest magnitude of each block; 0 and NaN give the scale 1"),
           },
       .outputs =
           {
               real("scale", "N", "f32(largest of the format / max(amax, amax_epsilon)), truncated if power_of_two"),
               real("scale_inv", "N", "f32(1 / scale)"),
               real("floored", "N", "max(amax, amax_epsilon) as f32"),
           },
       .source = "megatron.md 5.1, 5.2"},
      {.name = "linear_fp8",
       .summary = "y = sum over K blocks of x_scale * w_scale * (codes . codes)",
       .attributes =
           {
               with_default("block", kInteger, 128, "K block of the activation scales and side of the weight blocks"),
               nullable("w_block_rows", kInteger,
                        "rows of a block of w_scales; null: block. The weight gradient has 1 (1x128 by 1x128)"),
               nullable(
                   "accumulator_fraction_bits", kInteger,
                   "bits kept behind the leading one when a tensor core adds 32 products (13 on sm_90); null: f32"),
           },
       .inputs =
           {
               real("x_codes", "M K", "activations of an FP8 dtype"),
               real("x_scales", "M Kb=ceil(K/block)", "one factor per row and K block"),
               real("w_codes", "N K", "weights of an FP8 dtype"),
               real("w_scales", "Nb Kb", "one factor per weight block; Nb is N / w_block_rows, rounded up"),
           },
       .outputs =
           {
               real("y", "M N", "output rows"),
           },
       .source = "model.md 1; megatron.md 5"},
  };
  return ops;
}

}  // namespace assay
