#include "reference/ops/mhc_layer.h"

namespace assay::reference {
namespace {

template <class T>
struct Coefficients {
  Array<T> h_pre, h_post, h_res;
};

/// The stored coefficients where they are given, else the computed ones.
template <class T>
Coefficients<T> coefficients_of(const LayerInputs<T>& in) {
  Coefficients<T> h{in.h_pre, in.h_post, in.h_res};
  if (h.h_pre.size() && h.h_post.size() && h.h_res.size()) return h;
  Mapping<T> computed = mhc_mapping(in.x, in.weight, in.alpha, in.bias, in.options);
  const auto complete = [&in](Array<T>& stored, Array<T>& made) {
    if (stored.size()) return;
    stored = std::move(made);
    if (in.keep_in_fp32) return;
    for (T& value : stored.data) value = round_at(point("mhc_layer/mappings"), value);
  };
  complete(h.h_pre, computed.h_pre);
  complete(h.h_post, computed.h_post);
  complete(h.h_res, computed.h_res);
  return h;
}

template <class T>
LayerInputs<T> inputs_of(const Call<T>& call) {
  const auto optional = [&call](const char* name) { return call.has(name) ? call.in(name) : Array<T>(); };
  return {.x = call.in("x"),
          .weight = call.in("weight"),
          .alpha = call.in("alpha"),
          .bias = call.in("bias"),
          .branch = call.in("branch"),
          .branch_bias = optional("branch_bias"),
          .h_pre = optional("h_pre"),
          .h_post = optional("h_post"),
          .h_res = optional("h_res"),
          .options = {.norm_eps = call.real("norm_eps"),
                      .norm_eps_inside_sqrt = call.flag("norm_eps_inside_sqrt"),
                      .pre_eps = call.real("pre_eps"),
                      .sinkhorn_eps = call.real("sinkhorn_eps"),
                      .iterations = call.integer("iterations")},
          .keep_in_fp32 = call.flag("keep_mappings_in_fp32")};
}

}  // namespace

template <class T>
Layer<T> mhc_layer(const LayerInputs<T>& in) {
  const Coefficients<T> h = coefficients_of(in);
  return {mhc_aggregate(in.x, h.h_pre, in.keep_in_fp32),
          mhc_mix(in.x, in.branch, h.h_post, h.h_res, in.branch_bias, in.keep_in_fp32)};
}

template <class T>
LayerGradient<T> mhc_layer_backward(const LayerInputs<T>& in, const Array<T>& d_aggregated, const Array<T>& d_output) {
  const Coefficients<T> h = coefficients_of(in);
  AggregateGradient<T> aggregate = mhc_aggregate_backward(in.x, h.h_pre, d_aggregated, in.keep_in_fp32);
  MixGradient<T> mix = mhc_mix_backward(in.x, in.branch, h.h_post, h.h_res, in.branch_bias, d_output, in.keep_in_fp32);
  MappingCotangent<T> cotangent;
  cotangent.d_h_pre = std::move(aggregate.d_h_pre);
  cotangent.d_h_post = std::move(mix.d_h_post);
  cotangent.d_h_res = std::move(mix.d_h_res);
  MappingGradient<T> mapping = mhc_mapping_backward(in.x, in.weight, in.alpha, in.bias, in.options, cotangent);
  Array<T> d_x(in.x.shape);
  for (std::int64_t i = 0; i < d_x.size(); ++i)  // the parts come rounded
    d_x[i] = round_at(point("mhc_layer.backward/d_x"), round_at(point("mhc_layer.backward/d_x_of_input"), mapping.d_x[i] + aggregate.d_x[i]) + mix.d_residual[i]);
  return {std::move(d_x),          std::move(mapping.d_weight), std::move(mapping.d_alpha), std::move(mapping.d_bias),
          std::move(mix.d_branch), std::move(mix.d_branch_bias)};
}

template <class T>
void add_mhc_layer_ops(OpTable<T>& table) {
  table["mhc_layer"] = [](const Call<T>& call) {
    Layer<T> layer = mhc_layer(inputs_of(call));
    return Results<T>{{"aggregated", std::move(layer.aggregated)}, {"output", std::move(layer.output)}};
  };
  table["mhc_layer.backward"] = [](const Call<T>& call) {
    const auto cotangent = [&call](const char* name) { return call.has(name) ? call.in(name) : Array<T>(); };
    LayerGradient<T> g = mhc_layer_backward(inputs_of(call), cotangent("d_aggregated"), cotangent("d_output"));
    Results<T> results{{"d_x", std::move(g.d_x)},
                       {"d_weight", std::move(g.d_weight)},
                       {"d_alpha", std::move(g.d_alpha)},
                       {"d_bias", std::move(g.d_bias)},
                       {"d_branch", std::move(g.d_branch)}};
    if (call.has("branch_bias")) results["d_branch_bias"] = std::move(g.d_branch_bias);
    return results;
  };
}

#define ASSAY_INSTANTIATE(T)                                                                             \
  template Layer<T> mhc_layer(const LayerInputs<T>&);                                                    \
  template LayerGradient<T> mhc_layer_backward(const LayerInputs<T>&, const Array<T>&, const Array<T>&); \
  template void add_mhc_layer_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
