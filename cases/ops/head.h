// Embedding, losses, and the shift of multi-token prediction.
// Operands, attributes and contracts are in head.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// embed, cross_entropy, aux_loss, mtp_shift.
const std::vector<OpSpec>& head_ops();

}  // namespace assay
