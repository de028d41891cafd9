// Attention over selected tokens, absorbed and expanded.
// Operands, attributes and contracts are in attention.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// sparse_attention, mla_attention.
const std::vector<OpSpec>& attention_ops();

}  // namespace assay
