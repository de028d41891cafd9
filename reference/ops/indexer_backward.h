// Gradients of the KPool indexer up to its scores. No gradient passes through the selection or the FP8 quantisation.
// Sources: shared/spec/model.md 7.2; megatron.md 3.2 to 3.6.
//
// Gradients of activations are rounded once, those of weights and ape are not. An empty cotangent (size 0) means zero.
#pragma once

#include <cstdint>
#include <optional>

#include "reference/call.h"

namespace assay::reference {

template <class T>
struct KPoolGradients {
  Array<T> d_k;     ///< [T, D], 0 for tokens in no pool
  Array<T> d_gate;  ///< [T, D]; empty without gate
  Array<T> d_ape;   ///< [kpool, D], summed over the pools in order from unrounded values; empty without ape
};

/// Of kpool_compress, f32 throughout: d_pooled [P, D], d_weights and d_exp [P, kpool, D] (of exp_of_score_minus_max,
/// whose maximum is that of the first largest slot). Errors are those of the forward.
template <class T>
KPoolGradients<T> kpool_compress_backward(const Array<T>& k, const Array<T>& gate, const Array<T>& ape,
                                          std::int64_t kpool, const Index& cu_seqlens, const Array<T>& d_pooled,
                                          const Array<T>& d_weights = Array<T>(), const Array<T>& d_exp = Array<T>());

/// Of the Hadamard rotation alone: d_x = D^-1/2 H d_y, or d_y itself if not `rotate`. x [..., D] gives the shape.
template <class T>
Array<T> hadamard_backward(const Array<T>& x, const Array<T>& d_y, bool rotate = true);

template <class T>
struct HeadWeightsGradients {
  Array<T> d_x;       ///< [T, C]
  Array<T> d_weight;  ///< [Hi, C]
};

/// Of head_weights: x [T, C], weight [Hi, C], d_w [T, Hi].
template <class T>
HeadWeightsGradients<T> head_weights_backward(const Array<T>& x, const Array<T>& weight, std::int64_t head_dim,
                                              const Array<T>& d_w);

template <class T>
struct IndexScoresGradients {
  Array<T> d_q;       ///< [T, Hi, D]
  Array<T> d_pooled;  ///< [P, D]
  Array<T> d_w;       ///< [T, Hi], f32: not rounded
};

/// Of index_scores: q [T, Hi, D], pooled [P, D], w [T, Hi], d_s [T, P]. With relu a dot passes its gradient where it is
/// greater than 0; where a Ball or a Bound cannot tell, the result covers both.
template <class T>
IndexScoresGradients<T> index_scores_backward(const Array<T>& q, const Array<T>& pooled, const Array<T>& w,
                                              bool use_relu, std::optional<double> scale, const Array<T>& d_s);

/// "kpool_compress.backward", "hadamard_fp8.backward", "head_weights.backward", "index_scores.backward". The second
/// takes d_y, d_rotated and d_transformed and throws InputError for a d_y of a quantised call (E4M3 has no gradient).
template <class T>
void add_indexer_backward_ops(OpTable<T>& table);

}  // namespace assay::reference
