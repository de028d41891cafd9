// Gradients of the vision tower's own operations. Source: shared/spec/model.md 12.
//
// Gradients of activations are rounded once, those of weights and biases are not. An empty cotangent (size 0) means
// zero. Errors are those of the forward.
#pragma once

#include "reference/ops/attention_backward.h"
#include "reference/ops/linear_backward.h"

namespace assay::reference {

/// Of patch_embed, a linear map: x [N, P], weight [C, P], dy [N, C].
template <class T>
LinearGradients<T> patch_embed_backward(const Array<T>& x, const Array<T>& weight, bool has_bias, const Array<T>& dy);

/// Of rope_2d: dy rotated back. x [N, H, D] gives the shape.
template <class T>
Array<T> rope_2d_backward(const Array<T>& x, const Index& positions, double theta, const Array<T>& dy);

/// Of segment_attention: attention over the patches of the query's segment. q, k, v, d_o [N, H, D], d_lse [N, H].
template <class T>
AttentionGradients<T> segment_attention_backward(const Array<T>& q, const Array<T>& k, const Array<T>& v,
                                                 const Index& cu_seqlens, double scale, const Array<T>& d_o,
                                                 const Array<T>& d_lse);

/// d_x = dy ((1 + erf(x / sqrt 2)) / 2 + x exp(-x^2 / 2) / sqrt(2 pi)).
template <class T>
Array<T> gelu_backward(const Array<T>& x, const Array<T>& dy);

/// Of downsample: x [M*s*s, C], weight [O, C, s, s], dy [M, O].
template <class T>
LinearGradients<T> downsample_backward(const Array<T>& x, const Array<T>& weight, bool has_bias, const Array<T>& dy);

template <class T>
struct FeatureScatterGradients {
  Array<T> d_x;         ///< [T, C], dy, and 0 in replaced rows
  Array<T> d_features;  ///< [F, C], the replaced rows of dy in order
};

/// Of feature_scatter, a copy: no rounding. x [T, C] and features [F, C] give the shapes, dy [T, C].
template <class T>
FeatureScatterGradients<T> feature_scatter_backward(const Array<T>& x, const Index& ids, std::int64_t token_id,
                                                    const Array<T>& features, const Array<T>& dy);

/// "patch_embed.backward", "rope_2d.backward", "segment_attention.backward", "gelu.backward", "downsample.backward",
/// "feature_scatter.backward".
template <class T>
void add_vision_backward_ops(OpTable<T>& table);

}  // namespace assay::reference
