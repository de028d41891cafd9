// Gradients of softmax attention over selected tokens. No gradient passes through the selection. Sources:
// shared/spec/model.md 7.1; megatron.md 4.
//
// With the probabilities p = exp(score - lse), the probabilities' cotangent dp = d_o . v + d_weights and
// delta = d_o . o + sum p d_weights:
//   ds = p (dp - delta + d_lse),  d_q = scale sum_s ds k,  d_k = scale sum_t ds q,  d_v = sum_t p d_o.
// Rounding points: o, dp, and p and ds before their products (each is stored in the activation dtype by some
// implementation), and the gradients. Rows without ids have no gradient; their d_o, d_weights and d_lse are not read.
// An empty cotangent (size 0) means zero. Errors are those of the forward.
#pragma once

#include <cstdint>

#include "reference/call.h"

namespace assay::reference {

template <class T>
struct AttentionGradients {
  Array<T> d_q;  ///< [T, H, D]
  Array<T> d_k;  ///< [S, H, D], sums over the queries in order
  Array<T> d_v;  ///< [S, H, Dv]
};

/// Of mla_attention: q [T, H, D], k [S, H, D], v [S, H, Dv], ids [T, W], d_o [T, H, Dv], d_weights [T, H, S], d_lse
/// [T, H]. Cotangents of weights that are not selected are not read.
template <class T>
AttentionGradients<T> mla_attention_backward(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Index& ids,
                                             const T& scale, const Array<T>& d_o, const Array<T>& d_weights,
                                             const Array<T>& d_lse);

/// The second formulation of the same function: matrix products over all S tokens, probability 0 where not selected.
template <class T>
AttentionGradients<T> mla_attention_backward_masked(const Array<T>& q, const Array<T>& k, const Array<T>& v,
                                                    const Index& ids, const T& scale, const Array<T>& d_o,
                                                    const Array<T>& d_weights, const Array<T>& d_lse);

template <class T>
struct SparseAttentionGradients {
  Array<T> d_q;  ///< [T, H, D]
  Array<T> d_c;  ///< [S, D], the parts as key and as value are rounded before their sum
};

/// Of sparse_attention: q [T, H, D], c [S, D], d_o [T, H, value_dim], d_lse [T, H].
template <class T>
SparseAttentionGradients<T> sparse_attention_backward(const Array<T>& q, const Array<T>& c, const Index& ids,
                                                      const T& scale, std::int64_t value_dim, const Array<T>& d_o,
                                                      const Array<T>& d_lse);

/// "mla_attention.backward", "sparse_attention.backward".
template <class T>
void add_attention_backward_ops(OpTable<T>& table);

}  // namespace assay::reference
