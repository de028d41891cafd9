// One whole site of manifold-constrained hyper-connections: the mappings of the streams, the input of the sublayer, and
// the merge of its output, whose three uses of the streams meet in one gradient. Sources: shared/spec/model.md 5;
// megatron.md 1.3 to 1.7. Shapes as in mhc.h.
#pragma once

#include "reference/ops/mhc_backward.h"

namespace assay::reference {

template <class T>
struct LayerInputs {
  Array<T> x;                    ///< [T, n, C]
  Array<T> weight, alpha, bias;  ///< of mhc_mapping
  Array<T> branch, branch_bias;  ///< output of the sublayer [T, C]; its bias [C] may be empty
  /// Coefficients that an implementation stored, [T, n], [T, n] and [T, n, n]: used instead of the computed ones by
  /// everything but the mappings themselves. Each may be empty.
  Array<T> h_pre, h_post, h_res;
  MappingOptions options;
  bool keep_in_fp32 = true;  ///< false: computed coefficients are rounded to the activation dtype once
};

template <class T>
struct Layer {
  Array<T> aggregated;  ///< [T, C]
  Array<T> output;      ///< [T, n, C]
};

template <class T>
Layer<T> mhc_layer(const LayerInputs<T>& inputs);

template <class T>
struct LayerGradient {
  Array<T> d_x, d_weight, d_alpha, d_bias, d_branch;
  Array<T> d_branch_bias;  ///< empty without a bias
};

/// mhc_aggregate_backward and mhc_mix_backward; their d_h_* are the cotangents of mhc_mapping_backward. Cotangents
/// d_aggregated [T, C] and d_output [T, n, C]; empty means zero. d_x = (mapping + aggregate) + residual: each of the
/// three parts, and each of the two sums, is rounded to the activation dtype. (megatron.md 1.7 calls the sum one fused
/// expression; recorded gradients round between its two additions.)
template <class T>
LayerGradient<T> mhc_layer_backward(const LayerInputs<T>& inputs, const Array<T>& d_aggregated,
                                    const Array<T>& d_output);

/// mhc_layer, mhc_layer.backward.
template <class T>
void add_mhc_layer_ops(OpTable<T>& table);

}  // namespace assay::reference
