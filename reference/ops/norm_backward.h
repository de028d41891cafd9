// Gradients of the norms of norm.h: d_<input> for the cotangent dy of the output [same shape as the input]. An empty
// cotangent means zero. Sums over rows run in the order of the rows. Sources: shared/spec/model.md 4, 6 (backward);
// megatron.md 2.3 step 7.
#pragma once

#include "reference/call.h"

namespace assay::reference {

template <class T>
struct RmsNormGradients {
  Array<T> d_x;       ///< [..., N], rounded to the activation dtype
  Array<T> d_weight;  ///< [N], empty without a weight
};

/// With xh = x r, r = rsqrt(mean(x^2) + eps), g = dy * weight: d_x = r (g - xh mean(g xh)), d_weight = sum dy xh. Where
/// there is a weight, xh and g are rounding points as in the forward (an implementation may round before the product).
template <class T>
RmsNormGradients<T> rms_norm_backward(const Array<T>& x, const Array<T>& weight, double eps, const Array<T>& dy);

template <class T>
struct LayerNormGradients {
  Array<T> d_x;       ///< [..., N], rounded to the activation dtype
  Array<T> d_weight;  ///< [N]
  Array<T> d_bias;    ///< [N], empty without a bias
};

/// With xh = (x - mean) r, g = dy * weight: d_x = r (g - mean(g) - xh mean(g xh)), d_weight = sum dy xh, d_bias = sum
/// dy.
template <class T>
LayerNormGradients<T> layer_norm_backward(const Array<T>& x, const Array<T>& weight, const Array<T>& bias, double eps,
                                          const Array<T>& dy);

template <class T>
struct GatedRmsNormGradients {
  Array<T> d_o;       ///< [..., D], rounded to the activation dtype
  Array<T> d_z;       ///< [..., D], rounded to the activation dtype
  Array<T> d_weight;  ///< [D]
};

/// With xh = o r, s = sigmoid(z), g = dy * weight * s: d_o = r (g - xh mean(g xh)), d_z = dy weight xh s (1 - s),
/// d_weight = sum dy xh s.
template <class T>
GatedRmsNormGradients<T> gated_rms_norm_backward(const Array<T>& o, const Array<T>& z, const Array<T>& weight,
                                                 double eps, const Array<T>& dy);

/// With y = x r, the stored (rounded) result, r = rsqrt(sum(x^2) + eps): d_x = r (dy - y sum(y dy)), rounded to the
/// activation dtype. x = 0 gives dy / sqrt(eps). `stored` is y as an implementation stored it; empty: computed.
template <class T>
Array<T> l2norm_backward(const Array<T>& x, double eps, const Array<T>& dy, const Array<T>& stored = Array<T>());

/// rms_norm.backward, layer_norm.backward, gated_rms_norm.backward, l2norm.backward.
template <class T>
void add_norm_backward_ops(OpTable<T>& table);

}  // namespace assay::reference
