// Vision tower.
// Operands, attributes and contracts are in vision.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// patch_embed, rope_2d, segment_attention, gelu, downsample, feature_scatter.
const std::vector<OpSpec>& vision_ops();

}  // namespace assay
