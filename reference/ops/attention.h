// Softmax attention over selected tokens, with keys and values per head or on the shared latent rows. Sources:
// shared/spec/model.md 7.1; megatron.md 4.
#pragma once

#include <cstdint>

#include "reference/call.h"

namespace assay::reference {

template <class T>
struct MaskedAttention {
  Array<T> o;        ///< [T, H, Dv]
  Array<T> weights;  ///< [T, H, S], 0 where not selected
  Array<T> lse;      ///< [T, H] natural log of the sum of exp(score)
};

/// p = softmax over the ids of row t of scale q[t, h] . k[s, h]; o = sum p v. q [T, H, D], k [S, H, D], v [S, H, Dv],
/// ids [T, W] in any order, -1 is none. A row without ids has o = 0, weights 0 and lse = -infinity. Throws InputError
/// for an id outside [-1, S) and for an id that occurs twice in a row.
template <class T>
MaskedAttention<T> mla_attention(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Index& ids,
                                 const T& scale);

/// The second formulation of the same function: scores of all S tokens, -infinity where not selected.
template <class T>
MaskedAttention<T> mla_attention_masked(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Index& ids,
                                        const T& scale);

template <class T>
struct SparseAttention {
  Array<T> o;    ///< [T, H, value_dim]
  Array<T> lse;  ///< [T, H]
};

/// The absorbed form: all heads share the latent rows c [S, D], q [T, H, D] are the absorbed queries, the value of a
/// token is the leading value_dim channels of its row. The scale is that of the expanded form (256^-1/2, not D^-1/2).
template <class T>
SparseAttention<T> sparse_attention(const Array<T>& q, const Array<T>& c, const Index& ids, const T& scale,
                                    std::int64_t value_dim);

template <class T>
void add_attention_ops(OpTable<T>& table);

}  // namespace assay::reference
