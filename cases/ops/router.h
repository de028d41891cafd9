// Choice of experts and the sum of their outputs.
// Operands, attributes and contracts are in router.cpp.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// router, combine.
const std::vector<OpSpec>& router_ops();

}  // namespace assay
