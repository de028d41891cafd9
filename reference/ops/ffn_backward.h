// Gradients of the feed-forward nonlinearity and of the plain residual. Source: shared/spec/model.md 8.1.
// An empty cotangent means zero.
#pragma once

#include "reference/call.h"

namespace assay::reference {

template <class T>
struct SwigluGradient {
  Array<T> d_gate, d_up;  ///< [..., N]
};

/// d_up = dy silu(a) where -limit <= up <= limit; d_gate = dy b silu'(a) where gate <= limit, with a and b the clamped
/// gate and up and silu'(a) = s (1 + a (1 - s)), s = sigmoid(a): the gradient passes at equality. A Ball or Bound that
/// straddles a limit takes both cases. silu(a) and dy b are rounded to the activation dtype as in the forward.
template <class T>
SwigluGradient<T> swiglu_backward(const Array<T>& gate, const Array<T>& up, std::optional<double> limit,
                                  const Array<T>& dy);

template <class T>
struct ResidualAddGradient {
  Array<T> d_a, d_b;  ///< [..., C]
};

/// Both summands get dy. `shape` is that of a and b.
template <class T>
ResidualAddGradient<T> residual_add_backward(const Shape& shape, const Array<T>& dy);

template <class T>
void add_ffn_backward_ops(OpTable<T>& table);

}  // namespace assay::reference
