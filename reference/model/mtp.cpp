#include "reference/linear_algebra.h"
#include "reference/model/layers.h"
#include "reference/ops/ffn.h"
#include "reference/ops/linear.h"
#include "reference/ops/norm.h"

namespace assay::reference {
namespace {

/// Columns [begin, begin + count) of a matrix.
template <class T>
Array<T> columns(const Array<T>& w, std::int64_t begin, std::int64_t count) {
  Array<T> part({w.dim(0), count});
  for (std::int64_t r = 0; r < w.dim(0); ++r)
    std::copy(w.row(r, w.dim(1)) + begin, w.row(r, w.dim(1)) + begin + count, part.row(r, count));
  return part;
}

}  // namespace

template <class T>
Array<T> mtp_layer(const Pass<T>& pass, const Weights& layer, const Array<T>& embedding, const Array<T>& hidden,
                   const std::string& path) {
  const double eps = pass.config.rms_norm_eps;
  const std::int64_t tokens = hidden.dim(0), width = hidden.dim(1);
  const auto normed = [&](const Array<T>& x, const std::string& name) {
    return rms_norm(x, layer.get<T>(name + ".weight"), eps);
  };
  const Array<T> e = normed(embedding, "enorm"), h = normed(hidden, "hnorm");
  Array<T> both({tokens, 2 * width});
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::copy(e.row(t, width), e.row(t, width) + width, both.row(t, 2 * width));
    std::copy(h.row(t, width), h.row(t, width) + width, both.row(t, 2 * width) + width);
  }
  const Array<T> x = pass.stage(path + "eh_proj", linear(both, layer.get<T>("eh_proj.weight"), Array<T>()));
  Index selected;
  const Array<T> y =
      dsa_layer(pass, layer.below("self_attn."), normed(x, "input_layernorm"), path + "dsa.", true, selected);
  const Array<T> x1 = residual_add(x, y);
  const Array<T> out = pass.stage(
      path + "ffn.out", moe_layer<T>(pass, layer.below("mlp."), normed(x1, "post_attention_layernorm"), path, nullptr));
  return pass.stage(path + "norm", normed(residual_add(x1, out), "shared_head.norm"));
}

template <class T>
Array<T> mtp_layer_with_streams(const Pass<T>& pass, const Weights& layer, const Array<T>& embedding,
                                const Array<T>& streams, const std::string& path) {
  const double eps = pass.config.rms_norm_eps;
  const std::int64_t tokens = streams.dim(0), n = streams.dim(1), width = streams.dim(2);
  const Array<T> weight = layer.get<T>("eh_proj.weight");
  const Array<T> e =
      linear(rms_norm(embedding, layer.get<T>("enorm.weight"), eps), columns(weight, 0, width), Array<T>());
  const Array<T> h =
      linear(rms_norm(streams, layer.get<T>("hnorm.weight"), eps), columns(weight, width, width), Array<T>());
  const Array<T> in = pass.stage(path + "eh_proj", residual_add(stream_expand(e, n), h));

  const Site<T> attention = enter_site(pass, layer, "hc_attn_", in, path + "attention.");
  Index selected;
  const Array<T> y = dsa_layer(pass, layer.below("self_attn."),
                               rms_norm(attention.collapsed, layer.get<T>("input_layernorm.weight"), eps),
                               path + "dsa.", true, selected);
  const Array<T> between = mhc_mix(in, y, attention.mapping.h_post, attention.mapping.h_res, Array<T>());
  const Site<T> ffn = enter_site(pass, layer, "hc_ffn_", between, path + "ffn.");
  const Array<T> m = rms_norm(ffn.collapsed, layer.get<T>("post_attention_layernorm.weight"), eps);
  const Array<T> out = moe_layer<T>(pass, layer.below("mlp."), m, path, nullptr);
  ASSAY_CHECK(in.dim(0) == tokens);
  return pass.stage(path + "streams", mhc_mix(between, out, ffn.mapping.h_post, ffn.mapping.h_res, Array<T>()));
}

#define ASSAY_INSTANTIATE(T)                                                                                         \
  template Array<T> mtp_layer(const Pass<T>&, const Weights&, const Array<T>&, const Array<T>&, const std::string&); \
  template Array<T> mtp_layer_with_streams(const Pass<T>&, const Weights&, const Array<T>&, const Array<T>&,         \
                                           const std::string&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
