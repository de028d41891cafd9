// Index maps of packing and context parallelism.
// Operands, attributes and contracts are in layout.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// pack_sequences, cp_dense_order, cp_packed_order, cp_headwise_order.
const std::vector<OpSpec>& layout_ops();

}  // namespace assay
