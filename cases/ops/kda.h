// Kimi Delta Attention: convolution, gates and the delta rule.
// Operands, attributes and contracts are in kda.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// kda_conv, kda_gate, beta, delta_rule, delta_rule_chunked.
const std::vector<OpSpec>& kda_ops();

}  // namespace assay
