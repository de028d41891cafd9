// The sublayers of a checkpoint layer. Sources: shared/spec/model.md 5 to 9, 11.
#pragma once

#include "reference/model/graph.h"
#include "reference/model/inputs.h"
#include "reference/model/model.h"
#include "reference/model/weights.h"

namespace assay::reference {

/// What every sublayer is given besides its input.
template <class T>
struct Pass {
  const ModelConfig& config;
  const std::vector<Row>& rows;
  const Conventions& conventions;
  Observer<T>& observer;
  Tape<T>& tape;

  /// Hands a stage to the observer, who may replace the values that later stages start from.
  Var<T> stage(const std::string& name, Var<T> value) const {
    observer.values(name, value->value);
    return value;
  }
  /// A weight of the checkpoint as a parameter of the tape, under its full name.
  Var<T> weight(const Weights& weights, const std::string& name) const {
    return tape.parameter(weights.full_name(name), [&] { return weights.get<T>(name); });
  }
};

/// KDA of h [tokens, hidden] -> [tokens, hidden]; padding tokens are zeroed first. `path` "layers.4.kda.".
template <class T>
Var<T> kda_layer(const Pass<T>& pass, const Weights& attention, const Var<T>& h, const std::string& path);

/// Sparse MLA with the pooled indexer. `selected` [tokens, width] holds row-local token ids: filled by a full indexer
/// and read by a shared one (`own_indexer` false; throws InputError if nothing was selected before).
template <class T>
Var<T> dsa_layer(const Pass<T>& pass, const Weights& attention, const Var<T>& h, const std::string& path,
                 bool own_indexer, Index& selected);

/// Clamped SwiGLU MLP with projections gate_proj, up_proj, down_proj below `mlp`.
template <class T>
Var<T> swiglu_mlp(const Pass<T>& pass, const Weights& mlp, const Var<T>& x, double limit);

/// Router, routed experts and shared expert. Adds its logits [tokens, experts] to `router_logits` if given.
template <class T>
Var<T> moe_layer(const Pass<T>& pass, const Weights& mlp, const Var<T>& x, const std::string& path,
                 std::vector<Var<T>>* router_logits);

/// One hyper-connection site: collapses the streams, runs the sublayer, mixes. `parameters` prefix e.g. "hc_attn_".
template <class T>
struct Site {
  MappingVars<T> mapping;
  Var<T> collapsed;  ///< [tokens, hidden]
};
template <class T>
Site<T> enter_site(const Pass<T>& pass, const Weights& layer, const std::string& parameters, const Var<T>& streams,
                   const std::string& path);

/// One MTP layer (checkpoint layer num_hidden_layers + depth), plain residual: h and e are [tokens, hidden]; -> the
/// hidden after shared_head.norm. Embedding half first in eh_proj.
template <class T>
Var<T> mtp_layer(const Pass<T>& pass, const Weights& layer, const Var<T>& embedding, const Var<T>& hidden,
                 const std::string& path);

/// One MTP layer in Megatron's form: streams [tokens, n, hidden] in and out, hnorm per stream, e_proj and h_proj
/// summed, inner sublayers wrapped in hyper-connections whose parameters are below `layer` as hc_attn_* and hc_ffn_*.
template <class T>
Var<T> mtp_layer_with_streams(const Pass<T>& pass, const Weights& layer, const Var<T>& embedding, const Var<T>& streams,
                              const std::string& path);

/// The vision tower: patches [N, values], grid [images, 3] -> features [N / merge^2, out_hidden].
template <class T>
Var<T> vision_tower(const Pass<T>& pass, const Weights& visual, const VisionConfig& vision, const Array<T>& patches,
                    const Index& grid);

}  // namespace assay::reference
