// KPool lightning indexer of the sparse attention layers.
// Operands, attributes and contracts are in indexer.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// kpool_compress, hadamard_fp8, fp8_row_scale, head_weights, index_scores, select_tokens, indexer_loss.
const std::vector<OpSpec>& indexer_ops();

}  // namespace assay
