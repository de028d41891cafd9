// The fused site of hyper-connections: equal to its parts; its backward by central differences.
#include "reference/ops/mhc_layer.h"

#include "tests/ops/central_difference_mhc.h"

namespace assay::reference {
namespace {

using namespace proof;  // NOLINT: the words of this file

struct Site {
  std::int64_t tokens, n, width;
  bool inside;
  std::int64_t iterations;
  bool biased;
};

/// x, weight, alpha, bias, branch, and branch_bias if there is one.
Arrays<double> inputs_of(const Site& site) {
  const std::int64_t outputs = site.n * site.n + 2 * site.n;
  Arrays<double> in{seeded({site.tokens, site.n, site.width}, 1), seeded({outputs, site.n * site.width}, 2, 0.3),
                    seeded({3}, 3), seeded({outputs}, 4, 0.5), seeded({site.tokens, site.width}, 5)};
  if (site.biased) in.push_back(seeded({site.width}, 6));
  return in;
}

template <class T>
LayerInputs<T> layer_inputs(const Site& site, const Arrays<T>& in) {
  LayerInputs<T> inputs;
  inputs.x = in[0];
  inputs.weight = in[1];
  inputs.alpha = in[2];
  inputs.bias = in[3];
  inputs.branch = in[4];
  if (site.biased) inputs.branch_bias = in[5];
  inputs.options = {
      .norm_eps = site.inside ? 1e-5 : 1e-6, .norm_eps_inside_sqrt = site.inside, .iterations = site.iterations};
  return inputs;
}

template <class T>
Mapping<T> mapping_of(const LayerInputs<T>& in) {
  return mhc_mapping(in.x, in.weight, in.alpha, in.bias, in.options);
}

TEST(MhcLayer, equals_its_parts) {
  const Site site{3, 4, 2, true, 5, true};
  const LayerInputs<double> in = layer_inputs(site, inputs_of(site));
  const Mapping<double> m = mapping_of(in);
  const Layer<double> layer = mhc_layer(in);
  EXPECT_EQ(layer.aggregated.data, mhc_aggregate(in.x, m.h_pre).data);
  EXPECT_EQ(layer.output.data, mhc_mix(in.x, in.branch, m.h_post, m.h_res, in.branch_bias).data);
}

TEST(MhcLayer, stored_coefficients_replace_the_computed_ones) {
  const Site site{2, 2, 3, false, 3, false};
  LayerInputs<double> in = layer_inputs(site, inputs_of(site));
  const Layer<double> computed = mhc_layer(in);
  in.h_pre = seeded({2, 2}, 7);
  EXPECT_EQ(mhc_layer(in).aggregated.data, mhc_aggregate(in.x, in.h_pre).data);
  EXPECT_EQ(mhc_layer(in).output.data, computed.output.data);
  in.h_post = seeded({2, 2}, 8);
  in.h_res = seeded({2, 2, 2}, 9);
  EXPECT_EQ(mhc_layer(in).output.data, mhc_mix(in.x, in.branch, in.h_post, in.h_res, Array<double>()).data);
}

TEST(MhcLayer, in_the_activation_dtype_computed_coefficients_are_rounded_once) {
  Context low = context();
  low.rounding = {0x1p-24, bf16().unit_roundoff, 0x1p-126};
  const ContextScope scope(low);
  const Site site{2, 2, 3, true, 3, false};
  LayerInputs<Bound> in = layer_inputs(site, as<Bound>(inputs_of(site)));
  in.keep_in_fp32 = false;
  const Array<Bound> computed = mhc_layer(in).aggregated;
  in.h_pre = mapping_of(in).h_pre;
  for (Bound& value : in.h_pre.data) value = round_at(point("mhc_layer/mappings"), value);
  const Array<Bound> rounded = mhc_layer(in).aggregated;
  for (std::int64_t i = 0; i < computed.size(); ++i) EXPECT_EQ(computed[i].e, rounded[i].e);
}

TEST(MhcLayerBackward, equals_central_differences) {
  for (const Site& site : {Site{2, 2, 3, true, 3, true}, Site{2, 3, 2, false, 2, false}, Site{1, 4, 2, true, 20, true}})
    prove(
        inputs_of(site),
        [&]<class T>(const Arrays<T>& in) {
          Layer<T> layer = mhc_layer(layer_inputs(site, in));
          return Arrays<T>{layer.aggregated, layer.output};
        },
        [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
          LayerGradient<T> g = mhc_layer_backward(layer_inputs(site, in), d[0], d[1]);
          Arrays<T> gradients{g.d_x, g.d_weight, g.d_alpha, g.d_bias, g.d_branch};
          if (site.biased) gradients.push_back(g.d_branch_bias);
          return gradients;
        });
}

TEST(MhcLayerBackward, the_gradient_of_the_streams_is_mapping_plus_aggregate_plus_residual) {
  const Site site{2, 4, 2, true, 3, true};
  LayerInputs<double> in = layer_inputs(site, inputs_of(site));
  in.h_pre = seeded({2, 4}, 7);
  in.h_post = seeded({2, 4}, 8);
  in.h_res = seeded({2, 4, 4}, 9);
  const Array<double> d_aggregated = seeded({2, 2}, 10), d_output = seeded({2, 4, 2}, 11);
  const AggregateGradient<double> aggregate = mhc_aggregate_backward(in.x, in.h_pre, d_aggregated);
  const MixGradient<double> mix = mhc_mix_backward(in.x, in.branch, in.h_post, in.h_res, in.branch_bias, d_output);
  MappingCotangent<double> d;
  d.d_h_pre = aggregate.d_h_pre;
  d.d_h_post = mix.d_h_post;
  d.d_h_res = mix.d_h_res;
  const MappingGradient<double> mapping = mhc_mapping_backward(in.x, in.weight, in.alpha, in.bias, in.options, d);
  const LayerGradient<double> g = mhc_layer_backward(in, d_aggregated, d_output);
  for (std::int64_t i = 0; i < g.d_x.size(); ++i)
    EXPECT_EQ(g.d_x[i], mapping.d_x[i] + aggregate.d_x[i] + mix.d_residual[i]);
  EXPECT_EQ(g.d_weight.data, mapping.d_weight.data);
  EXPECT_EQ(g.d_branch.data, mix.d_branch.data);
  EXPECT_EQ(g.d_branch_bias.data, mix.d_branch_bias.data);
}

TEST(MhcLayerBackward, a_call_gives_a_gradient_for_everything_that_is_not_stored) {
  OpTable<double> table;
  add_mhc_layer_ops(table);
  const Site site{2, 2, 3, true, 3, true};
  const Arrays<double> in = inputs_of(site);
  const OpCall call = make_call(op_named("mhc_layer.backward"), {{"norm_eps", 1e-5}, {"iterations", 3}},
                                {{"x", tensor(in[0])},
                                 {"weight", tensor(in[1])},
                                 {"alpha", tensor(in[2])},
                                 {"bias", tensor(in[3])},
                                 {"branch", tensor(in[4])},
                                 {"branch_bias", tensor(in[5])},
                                 {"h_pre", tensor(seeded({2, 2}, 7))},
                                 {"d_output", tensor(seeded({2, 2, 3}, 8))}});
  Results<double> found = table.at("mhc_layer.backward")(Call<double>(call));
  EXPECT_EQ(found.size(), 6U);
  for (const OperandSpec& output : call.spec->outputs) EXPECT_EQ(found.count(output.name), 1U) << output.name;
  EXPECT_EQ(call.spec->outputs.size(), 6U);
}

}  // namespace
}  // namespace assay::reference
