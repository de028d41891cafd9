// Manifold-constrained hyper-connections: the n residual streams around every sublayer.
// Operands, attributes and contracts are in mhc.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// stream_expand, mhc_mapping, sinkhorn, mhc_aggregate, mhc_mix, mhc_layer, stream_contract.
const std::vector<OpSpec>& mhc_ops();

}  // namespace assay
