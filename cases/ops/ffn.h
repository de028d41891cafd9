// Elementwise parts of the feed-forward and residual paths.
// Operands, attributes and contracts are in ffn.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// swiglu, residual_add.
const std::vector<OpSpec>& ffn_ops();

}  // namespace assay
