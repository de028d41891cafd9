#include "reference/model/layers.h"

namespace assay::reference {
namespace {

/// Attention and experts of a plain pre-norm layer, or of one wrapped in hyper-connections.
template <class T>
class Sublayers {
 public:
  Sublayers(const Pass<T>& pass, const Weights& layer, const std::string& path)
      : pass_(pass), layer_(layer), path_(path) {}

  Var<T> normed(const Var<T>& x, const std::string& name) const {
    return Graph<T>::rms_norm(pass_.tape, x, pass_.weight(layer_, name + ".weight"), pass_.config.rms_norm_eps);
  }
  Var<T> attention(const Var<T>& x) const {
    Index selected;
    return dsa_layer(pass_, layer_.below("self_attn."), normed(x, "input_layernorm"), path_ + "dsa.", true, selected);
  }
  Var<T> experts(const Var<T>& x, std::vector<Var<T>>* router_logits) const {
    return moe_layer<T>(pass_, layer_.below("mlp."), normed(x, "post_attention_layernorm"), path_, router_logits);
  }

 private:
  const Pass<T>& pass_;
  const Weights& layer_;
  const std::string& path_;
};

}  // namespace

template <class T>
Var<T> mtp_layer(const Pass<T>& pass, const Weights& layer, const Var<T>& embedding, const Var<T>& hidden,
                 const std::string& path) {
  using G = Graph<T>;
  const Sublayers<T> sublayers(pass, layer, path);
  const Var<T> both =
      Moves<T>::beside(pass.tape, sublayers.normed(embedding, "enorm"), sublayers.normed(hidden, "hnorm"));
  const Var<T> x = pass.stage(path + "eh_proj", G::linear(pass.tape, both, pass.weight(layer, "eh_proj.weight")));
  const Var<T> x1 = G::residual_add(pass.tape, x, sublayers.attention(x));
  const Var<T> out = pass.stage(path + "ffn.out", sublayers.experts(x1, nullptr));
  return pass.stage(path + "norm", sublayers.normed(G::residual_add(pass.tape, x1, out), "shared_head.norm"));
}

template <class T>
Var<T> mtp_layer_with_streams(const Pass<T>& pass, const Weights& layer, const Var<T>& embedding, const Var<T>& streams,
                              const std::string& path) {
  using G = Graph<T>;
  using M = Moves<T>;
  Tape<T>& tape = pass.tape;
  const std::int64_t n = streams->value.dim(1), width = streams->value.dim(2);
  const Sublayers<T> sublayers(pass, layer, path);
  const Var<T> weight = pass.weight(layer, "eh_proj.weight");
  const Var<T> e = G::linear(tape, sublayers.normed(embedding, "enorm"), M::columns(tape, weight, 2 * width, 0, width));
  const Var<T> h =
      G::linear(tape, sublayers.normed(streams, "hnorm"), M::columns(tape, weight, 2 * width, width, width));
  const Var<T> in = pass.stage(path + "eh_proj", G::residual_add(tape, G::stream_expand(tape, e, n), h));

  const Site<T> attention = enter_site(pass, layer, "hc_attn_", in, path + "attention.");
  const Var<T> between =
      G::mhc_mix(tape, in, sublayers.attention(attention.collapsed), attention.mapping.h_post, attention.mapping.h_res);
  const Site<T> ffn = enter_site(pass, layer, "hc_ffn_", between, path + "ffn.");
  const Var<T> out = sublayers.experts(ffn.collapsed, nullptr);
  return pass.stage(path + "streams", G::mhc_mix(tape, between, out, ffn.mapping.h_post, ffn.mapping.h_res));
}

#define ASSAY_INSTANTIATE(T)                                                                                   \
  template Var<T> mtp_layer(const Pass<T>&, const Weights&, const Var<T>&, const Var<T>&, const std::string&); \
  template Var<T> mtp_layer_with_streams(const Pass<T>&, const Weights&, const Var<T>&, const Var<T>&,         \
                                         const std::string&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
