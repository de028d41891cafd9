// The feed-forward nonlinearity and the plain residual. Sources: shared/spec/model.md 8.1, 11; megatron.md 8.
#pragma once

#include "reference/call.h"

namespace assay::reference {

/// y = silu(min(gate, limit)) * clamp(up, -limit, limit), elementwise: the gate is clamped from above only, both clamps
/// come before silu. Two rounding points: silu and the product. Without a limit nothing is clamped. gate, up [..., N]
/// ->
/// [..., N].
template <class T>
Array<T> swiglu(const Array<T>& gate, const Array<T>& up, std::optional<double> limit);

/// y = a + b, one rounding. a, b [..., C] -> [..., C].
template <class T>
Array<T> residual_add(const Array<T>& a, const Array<T>& b);

template <class T>
void add_ffn_ops(OpTable<T>& table);

}  // namespace assay::reference
