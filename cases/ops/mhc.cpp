#include "cases/ops/mhc.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& mhc_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "stream_expand",
       .summary = "n equal copies of the embedding",
       .attributes =
           {
               required("n", kInteger, "number of residual streams"),
           },
       .inputs =
           {
               real("x", "... C", "hidden rows"),
           },
       .outputs =
           {
               real("y", "... n C", "residual streams"),
           },
       .source = "model.md 3; megatron.md 1.8"},
      {.name = "mhc_mapping",
       .summary = "coefficients h_pre, h_post and h_res of one site from the streams",
       .attributes =
           {
               required("norm_eps", kReal,
                        "eps of the parameter-free RMS norm (rms_norm_eps inside the root; 1e-6 outside)"),
               with_default("norm_eps_inside_sqrt", kBool, true,
                            "true: 1/sqrt(mean(x^2) + eps); false: 1/(|x|/sqrt(nC) + eps)"),
               with_default("pre_eps", kReal, 1e-6, "added to h_pre after the sigmoid"),
               with_default("sinkhorn_eps", kReal, 1e-6, "eps of the Sinkhorn steps"),
               with_default("iterations", kInteger, 20, "Sinkhorn iterations, at least 1"),
           },
       .inputs =
           {
               real("x", "T n C", "residual streams"),
               real("weight", "n*n+2*n n*C", "mapping rows: pre, post, then res row by row"),
               real("alpha", "3", "factors of the pre, post and res rows"),
               real("bias", "n*n+2*n", "added after the factor"),
           },
       .outputs =
           {
               real("h_pre", "T n", "weights of the streams in the sublayer input"),
               real("h_post", "T n", "weights of the sublayer output in each stream"),
               real("h_res", "T n n", "stream mixing [source, destination], nearly doubly stochastic"),
               real("inverse_rms", "T 1", "1 / rms of the flattened streams"),
               real("projection", "T n*n+2*n", "weight times the raw streams"),
               real("mapping_logits", "T n*n+2*n", "inverse_rms * projection * alpha + bias"),
           },
       .source = "model.md 5; megatron.md 1.3"},
      {.name = "sinkhorn",
       .summary = "softmax over the last index, then alternating column and row normalisation",
       .attributes =
           {
               with_default("iterations", kInteger, 20, "column steps, at least 1"),
               with_default("eps", kReal, 1e-6, "added to each softmax entry and to every later denominator"),
           },
       .inputs =
           {
               real("logits", "... n n", "[source, destination]"),
           },
       .outputs =
           {
               real("h_res", "... n n", "nearly doubly stochastic matrix"),
               real("row_sums", "... n", "sums over the last index of h_res"),
               real("column_sums", "... n", "sums over the last but one index of h_res"),
           },
       .source = "model.md 5.7; megatron.md 1.4"},
      {.name = "mhc_aggregate",
       .summary = "y = sum over streams of h_pre * x",
       .attributes =
           {
               with_default("keep_mappings_in_fp32", kBool, true,
                            "true: f32 to the end; false: intermediate values rounded to the activation dtype"),
           },
       .inputs =
           {
               real("x", "T n C", "residual streams"),
               real("h_pre", "T n", "weight of each stream"),
           },
       .outputs =
           {
               real("y", "T C", "input of the sublayer"),
           },
       .source = "model.md 5.8; megatron.md 1.5"},
      {.name = "mhc_mix",
       .summary = "y[j] = h_post[j] * (branch + bias) + sum over i of h_res[i,j] * residual[i]",
       .attributes =
           {
               with_default("keep_mappings_in_fp32", kBool, true,
                            "true: f32 to the end; false: intermediate values rounded to the activation dtype"),
           },
       .inputs =
           {
               real("residual", "T n C", "streams that entered the site"),
               real("branch", "T C", "output of the sublayer"),
               real("h_post", "T n", "weight of the branch in each stream"),
               real("h_res", "T n n", "[source, destination], applied transposed"),
               optional_real("branch_bias", "C", "bias of the sublayer output"),
           },
       .outputs =
           {
               real("y", "T n C", "new residual streams"),
           },
       .source = "model.md 5 (merge); megatron.md 1.6"},
      {.name = "mhc_layer",
       .summary = "fused: mhc_mapping, mhc_aggregate and mhc_mix of one site around a given sublayer output",
       .attributes =
           {
               required("norm_eps", kReal, "as in mhc_mapping"),
               with_default("norm_eps_inside_sqrt", kBool, true, "as in mhc_mapping"),
               with_default("pre_eps", kReal, 1e-6, "as in mhc_mapping"),
               with_default("sinkhorn_eps", kReal, 1e-6, "as in mhc_mapping"),
               with_default("iterations", kInteger, 20, "as in mhc_mapping"),
               with_default("keep_mappings_in_fp32", kBool, true,
                            "true: f32 to the end; false: h_pre, h_post, h_res and what follows in the activation "
                            "dtype"),
           },
       .inputs =
           {
               real("x", "T n C", "residual streams"),
               real("weight", "n*n+2*n n*C", "mapping rows: pre, post, then res row by row"),
               real("alpha", "3", "factors of the pre, post and res rows"),
               real("bias", "n*n+2*n", "added after the factor"),
               real("branch", "T C", "output of the sublayer"),
               optional_real("branch_bias", "C", "bias of the sublayer output"),
               optional_real("h_pre", "T n", "as an implementation stored it; absent: computed"),
               optional_real("h_post", "T n", "as an implementation stored it; absent: computed"),
               optional_real("h_res", "T n n", "as an implementation stored it; absent: computed"),
           },
       .outputs =
           {
               real("aggregated", "T C", "input of the sublayer"),
               real("output", "T n C", "new residual streams"),
           },
       .source = "model.md 5; megatron.md 1.3 to 1.7"},
      {.name = "stream_contract",
       .summary = "one hidden row from n streams: their mean, or a learned combination",
       .attributes =
           {
               with_default("mode", kText, "mean", "mean or learned"),
               with_default("eps", kReal, 1e-5, "learned: inside the root and added after the sigmoid"),
               with_default("mean_in_fp32", kBool, true,
                            "mean: false rounds the sum to the activation dtype before the division"),
           },
       .inputs =
           {
               real("x", "T n C", "residual streams"),
               optional_real("fn", "n n*C", "learned: mapping"),
               optional_real("base", "n", "learned: bias"),
               optional_real("scale", "1", "learned: factor"),
           },
       .outputs =
           {
               real("y", "T C", "hidden rows"),
           },
       .source = "model.md 3.4; megatron.md 1.8"},
  };
  return ops;
}

}  // namespace assay
