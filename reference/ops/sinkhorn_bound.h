// The permitted error of the reverse of Sinkhorn.
#pragma once

#include <cstdint>

#include "reference/bound.h"

namespace assay::reference {

/// sinkhorn_backward of one matrix for Bound: logits and d_h_res [n, n] -> d_logits [n, n].
void sinkhorn_backward_bound(const Bound* logits, std::int64_t n, std::int64_t iterations, double eps,
                             const Bound* d_h_res, Bound* d_logits);

}  // namespace assay::reference
