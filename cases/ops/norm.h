// Normalisations over the last dimension.
// Operands, attributes and contracts are in norm.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// rms_norm, layer_norm, gated_rms_norm, l2norm.
const std::vector<OpSpec>& norm_ops();

}  // namespace assay
