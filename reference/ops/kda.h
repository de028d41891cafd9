// KDA around its recurrence: short convolution, decay gate, step size. Sources: shared/spec/model.md 6,
// megatron.md 2.3. The recurrence itself is in delta_rule.h, the norms of q, k and the output in norm.h.
#pragma once

#include <optional>

#include "reference/call.h"

namespace assay::reference {

/// y[t, c] = SiLU(sum_j weight[c, j] * u[t - W + 1 + j, c]): u [T, Ch], weight [Ch, W] (the last tap multiplies the
/// current token) -> [T, Ch]. One rounding, after SiLU. What lies before a document's first token is zero, except that
/// `initial` [W-1, Ch] (may be empty), oldest row first, lies before the first document. cu_seqlens: see documents.h.
/// Source: model.md 6.2.
template <class T>
Array<T> kda_conv(const Array<T>& u, const Array<T>& weight, const Index& cu_seqlens, const Array<T>& initial);

/// Log decay per key channel: g = lower_bound * sigmoid(exp(A_log) * (f + dt_bias)), or without a bound
/// g = -exp(A_log) * softplus(f + dt_bias). f [T, H, D], A_log [H], dt_bias [H*D] or empty -> [T, H, D], not rounded to
/// the activation dtype. lower_bound is an exact number. Source: model.md 6.4; megatron.md 2.3 step 6.
template <class T>
Array<T> kda_gate(const Array<T>& f, const Array<T>& A_log, const Array<T>& dt_bias, std::optional<double> lower_bound);

/// beta = sigmoid(b) in the compute format. Source: model.md 6.5.
template <class T>
Array<T> beta(const Array<T>& b);

/// kda_conv, kda_gate, beta, delta_rule, delta_rule_chunked.
template <class T>
void add_kda_ops(OpTable<T>& table);

}  // namespace assay::reference
