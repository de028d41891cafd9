// Gradients of the matrix products. Sources: shared/spec/model.md 7.1, 8; megatron.md 4, 6 (weight gradients are
// accumulated in f32).
//
// Gradients of activations (d_x, d_q) have one rounding to the activation dtype, gradients of weights and biases none.
// An empty cotangent (size 0) means zero.
#pragma once

#include "reference/call.h"

namespace assay::reference {

template <class T>
Array<T> transposed(const Array<T>& matrix);  ///< [M, N] -> [N, M]

template <class T>
struct LinearGradients {
  Array<T> d_x;       ///< [..., K] = dy W
  Array<T> d_weight;  ///< [N, K] = dy^T x, summed over all rows
  Array<T> d_bias;    ///< [N] = sum of dy over all rows in order; empty without bias
};

/// Of linear: x [..., K], weight [N, K], dy [..., N].
template <class T>
LinearGradients<T> linear_backward(const Array<T>& x, const Array<T>& weight, bool has_bias, const Array<T>& dy);

/// The products alone, without a rounding point: {dy W, dy^T x} of x [..., K], weight [N, K], dy [..., N].
template <class T>
LinearGradients<T> product_backward(const Array<T>& x, const Array<T>& weight, const Array<T>& dy);

template <class T>
struct HeadLinearGradients {
  Array<T> d_q;       ///< [T, H, Dq]
  Array<T> d_weight;  ///< [H, Dk, Dq]
};

/// Of head_linear: q [T, H, Dq], weight [H, Dk, Dq], dy [T, H, Dk].
template <class T>
HeadLinearGradients<T> head_linear_backward(const Array<T>& q, const Array<T>& weight, const Array<T>& dy);

template <class T>
struct GroupedLinearGradients {
  Array<T> d_x;       ///< [M, K]
  Array<T> d_weight;  ///< [E, N, K], 0 for an empty group
};

/// Of grouped_linear: x [M, K], offsets [E+1], weight [E, N, K], dy [M, N]. Throws InputError as the forward.
template <class T>
GroupedLinearGradients<T> grouped_linear_backward(const Array<T>& x, const Index& offsets, const Array<T>& weight,
                                                  const Array<T>& dy);

/// "linear.backward", "head_linear.backward", "grouped_linear.backward".
template <class T>
void add_linear_backward_ops(OpTable<T>& table);

}  // namespace assay::reference
