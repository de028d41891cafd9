// Matrix products: plain, per head, per expert, and FP8 with block scales.
// Operands, attributes and contracts are in linear.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// linear, head_linear, grouped_linear, dequantize_block, quantize_block, linear_fp8.
const std::vector<OpSpec>& linear_ops();

}  // namespace assay
