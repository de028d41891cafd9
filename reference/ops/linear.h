// Matrix products with their rounding point. Sources: shared/spec/model.md 0 (notation), 7.1, 8; megatron.md 4, 7.
#pragma once

#include "reference/call.h"

namespace assay::reference {

/// y = x W^T + bias, one rounding to the activation dtype: x [..., K], weight [N, K], bias [N] or empty -> [..., N].
template <class T>
Array<T> linear(const Array<T>& x, const Array<T>& weight, const Array<T>& bias = Array<T>());

/// y[t, h] = W[h] q[t, h]: q [T, H, Dq], weight [H, Dk, Dq] -> [T, H, Dk], one rounding.
template <class T>
Array<T> head_linear(const Array<T>& q, const Array<T>& weight);

/// Rows offsets[e] .. offsets[e+1] of x times the weight of expert e: x [M, K], offsets [E+1], weight [E, N, K] ->
/// [M, N], one rounding. Empty groups give nothing. Throws InputError if offsets do not start at 0, decrease, or do not
/// end at M.
template <class T>
Array<T> grouped_linear(const Array<T>& x, const Index& offsets, const Array<T>& weight);

template <class T>
void add_linear_ops(OpTable<T>& table);

}  // namespace assay::reference
