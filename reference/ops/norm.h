// Norms: statistics and results without a rounding in between. Sources: shared/spec/model.md 4, 6.3, 6.7, 7.2;
// megatron.md 2.3.
#pragma once

#include "reference/call.h"

namespace assay::reference {

/// y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension; weight [N] may be empty (size 0). x [..., N] ->
/// [..., N].
template <class T>
Array<T> rms_norm(const Array<T>& x, const Array<T>& weight, double eps);

/// y = (x - mean) * rsqrt(var + eps) * weight + bias, var the population variance. bias may be empty.
template <class T>
Array<T> layer_norm(const Array<T>& x, const Array<T>& weight, const Array<T>& bias, double eps);

/// y = weight * o * rsqrt(mean(o^2) + eps) * sigmoid(z) over the last dimension (KDA output norm, weight [D] shared by
/// all heads).
template <class T>
Array<T> gated_rms_norm(const Array<T>& o, const Array<T>& z, const Array<T>& weight, double eps);

/// y = x / sqrt(sum(x^2) + eps) over the last dimension: eps inside the root, added to the sum.
template <class T>
Array<T> l2norm(const Array<T>& x, double eps);

template <class T>
void add_norm_ops(OpTable<T>& table);

}  // namespace assay::reference
