// The backward twins of the ops: "<op>.backward" has the inputs and attributes of <op>, a cotangent "d_<output>"
// (absent: zero) for each real output, and a gradient "d_<input>" for each real input that has one.
#pragma once

#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// The twins of those of the given ops that have a backward.
std::vector<OpSpec> backward_specs(const std::vector<OpSpec>& forward);

}  // namespace assay
