// Every place of a formula where an implementation may round a value that it holds, named once: "<op>/<what is held>".
// The reference's text rounds nowhere else; a contract (cases/contract.h) says to which format, if at all.
#pragma once

#include <cstddef>
#include <string_view>

namespace assay {

/// What a point does where no contract is given: a recorded dtype is all that is known of the implementation.
enum class Unspecified {
  kActivation,  ///< rounds to the activation dtype: some public implementation does
  kCompute,     ///< rounds to the format that sums are kept in
  kNone,        ///< does not round
};

struct RoundingPoint {
  std::string_view name;  ///< "rms_norm/normed"
  Unspecified unspecified;
  std::string_view meaning;
  /// Ops that store an output here, separated by blanks: their last rounding, which a comparison with what they stored
  /// takes over.
  std::string_view stored_by = "";

  constexpr std::string_view op() const { return name.substr(0, name.find('/')); }
  constexpr std::string_view value() const { return name.substr(name.find('/') + 1); }
};

inline constexpr RoundingPoint kRoundingPoints[] = {
    {"linear/y", Unspecified::kActivation, "the output row", "linear downsample"},
    {"head_linear/y", Unspecified::kActivation, "the output row of a head", "head_linear"},
    {"grouped_linear/y", Unspecified::kActivation, "the output row of an expert", "grouped_linear"},
    {"dequantize_block/y", Unspecified::kActivation, "code times scale", "dequantize_block"},
    {"linear_fp8/y", Unspecified::kActivation, "the output row", "linear_fp8"},
    {"linear.backward/d_x", Unspecified::kActivation, "gradient of the input", "linear.backward grouped_linear.backward downsample.backward"},
    {"head_linear.backward/d_q", Unspecified::kActivation, "gradient of the input", "head_linear.backward"},

    {"rms_norm/normed", Unspecified::kActivation, "x / rms, before the weight"},
    {"rms_norm/y", Unspecified::kActivation, "the output", "rms_norm"},
    {"layer_norm/y", Unspecified::kActivation, "the output", "layer_norm"},
    {"gated_rms_norm/y", Unspecified::kActivation, "the output", "gated_rms_norm"},
    {"l2norm/y", Unspecified::kActivation, "x / |x|", "l2norm"},
    {"rms_norm.backward/d_x", Unspecified::kActivation, "gradient of the input (of every norm)", "rms_norm.backward layer_norm.backward gated_rms_norm.backward"},
    {"rms_norm.backward/normed", Unspecified::kActivation, "x / rms, as the weight's gradient sees it"},
    {"rms_norm.backward/g", Unspecified::kActivation, "d_y times the weight"},
    {"gated_rms_norm.backward/d_z", Unspecified::kActivation, "gradient of the gate", "gated_rms_norm.backward"},
    {"l2norm.backward/normed", Unspecified::kActivation, "x / |x|, recomputed"},
    {"l2norm.backward/d_x", Unspecified::kActivation, "gradient of the input", "l2norm.backward kda_attention.backward"},

    {"stream_expand.backward/d_x", Unspecified::kActivation, "sum over the streams", "stream_expand.backward"},
    {"mhc_mapping/h", Unspecified::kNone, "h_pre, h_post and h_res", "mhc_mapping"},
    {"mhc_mapping.backward/d_x", Unspecified::kActivation, "gradient of the streams", "mhc_mapping.backward"},
    {"sinkhorn/iterate", Unspecified::kCompute, "the matrix after each step"},
    {"sinkhorn.backward/iterate", Unspecified::kCompute, "the matrix after each step, recomputed"},
    {"mhc_aggregate/products", Unspecified::kActivation, "h_pre times a stream, keep_mappings_in_fp32 off"},
    {"mhc_aggregate/y", Unspecified::kActivation, "the sublayer's input", "mhc_aggregate mhc_layer stream_contract"},
    {"mhc_aggregate.backward/d_x", Unspecified::kActivation, "gradient of the streams", "mhc_aggregate.backward"},
    {"mhc_aggregate.backward/products", Unspecified::kActivation, "x times d_y, keep_mappings_in_fp32 off"},
    {"mhc_aggregate.backward/d_h_pre", Unspecified::kActivation, "gradient of h_pre, keep_mappings_in_fp32 off", "mhc_aggregate.backward"},
    {"mhc_mix/coefficients", Unspecified::kNone, "h_post and h_res as the merge reads them"},
    {"mhc_mix/parts", Unspecified::kActivation, "h_post y and h_res X before their sum, keep_mappings_in_fp32 off"},
    {"mhc_mix/y", Unspecified::kActivation, "the new streams", "mhc_mix mhc_layer"},
    {"mhc_mix.backward/parts", Unspecified::kActivation, "products and sums, keep_mappings_in_fp32 off"},
    {"mhc_mix.backward/d_branch", Unspecified::kActivation, "gradient of the sublayer's output", "mhc_mix.backward mhc_layer.backward"},
    {"mhc_mix.backward/d_residual", Unspecified::kActivation, "gradient of the streams", "mhc_mix.backward"},
    {"mhc_layer/mappings", Unspecified::kActivation, "h_pre, h_post and h_res, keep_mappings_in_fp32 off"},
    {"mhc_layer.backward/d_x_of_input", Unspecified::kActivation, "gradients through mapping and aggregate, added"},
    {"mhc_layer.backward/d_x", Unspecified::kActivation, "the same plus the gradient through the residual", "mhc_layer.backward"},
    {"stream_contract/sum", Unspecified::kActivation, "sum of the streams, mean_in_fp32 off"},
    {"stream_contract/y", Unspecified::kActivation, "the contracted row", "stream_contract"},
    {"stream_contract.backward/d_x", Unspecified::kActivation, "gradient of the streams", "stream_contract.backward"},

    {"kda_conv/y", Unspecified::kActivation, "after SiLU", "kda_conv"},
    {"kda_conv.backward/d_u", Unspecified::kActivation, "gradient of the channels", "kda_conv.backward"},
    {"kda_conv.backward/d_initial", Unspecified::kActivation, "gradient of the inputs before the first token", "kda_conv.backward"},
    {"kda_gate.backward/d_f", Unspecified::kActivation, "gradient of the raw gate; dt_bias sums what was rounded", "kda_gate.backward kda_attention.backward"},
    {"beta/beta", Unspecified::kActivation, "the step size", "beta"},
    {"beta.backward/d_b", Unspecified::kActivation, "gradient of the raw step size", "beta.backward kda_attention.backward"},
    {"delta_rule/o", Unspecified::kActivation, "the output", "delta_rule kda_attention"},
    {"delta_rule.backward/d_v", Unspecified::kActivation, "gradient of the values", "delta_rule.backward kda_attention.backward"},
    {"delta_rule.backward/d_qk_of_group", Unspecified::kActivation, "gradients of queries and keys of a head group", "delta_rule.backward delta_rule_chunked.backward"},
    {"delta_rule_chunked/scores", Unspecified::kNone, "scale q k^T with decays, lower triangle (Aqk)"},
    {"delta_rule_chunked/inverse_factors", Unspecified::kNone, "operands of the products that merge blocks of T"},
    {"delta_rule_chunked/inverse", Unspecified::kNone, "T = (I + A)^-1"},
    {"delta_rule_chunked/beta_k", Unspecified::kNone, "beta k exp(G), right factor of W"},
    {"delta_rule_chunked/beta_v", Unspecified::kNone, "beta v, right factor of U"},
    {"delta_rule_chunked/w", Unspecified::kNone, "W = T (beta k exp(G))"},
    {"delta_rule_chunked/u", Unspecified::kNone, "U = T (beta v)"},
    {"delta_rule_chunked/k_end", Unspecified::kNone, "k exp(G_last - G)"},
    {"delta_rule_chunked/q_decayed", Unspecified::kNone, "q exp(G)"},
    {"delta_rule_chunked/state", Unspecified::kNone, "the state before a chunk, as products read it (h)"},
    {"delta_rule_chunked/v_new", Unspecified::kNone, "U - W h"},
    {"delta_rule_chunked/o", Unspecified::kActivation, "the output", "delta_rule_chunked kda_attention"},
    {"delta_rule_chunked.backward/d_v_local", Unspecified::kNone, "tril(Aqk)^T do, before the state's share"},
    {"delta_rule_chunked.backward/d_state", Unspecified::kNone, "gradient of the state after a chunk, as products read it"},
    {"delta_rule_chunked.backward/d_v_new", Unspecified::kNone, "gradient of v_new"},
    {"delta_rule_chunked.backward/d_w", Unspecified::kNone, "gradient of W"},
    {"delta_rule_chunked.backward/d_inverse", Unspecified::kNone, "gradient of T, strict lower triangle, times beta"},
    {"delta_rule_chunked.backward/d_inverse_product", Unspecified::kNone, "that times T^T"},
    {"delta_rule_chunked.backward/k_decayed", Unspecified::kNone, "k exp(G), right factor of dT"},
    {"delta_rule_chunked.backward/within", Unspecified::kNone, "operands of the products within a chunk (step 4)"},
    {"delta_rule_chunked.backward/d_v", Unspecified::kActivation, "gradient of the values", "delta_rule_chunked.backward kda_attention.backward"},

    {"kpool_compress/weights", Unspecified::kActivation, "softmax weights (rounding hf)"},
    {"kpool_compress/products", Unspecified::kActivation, "weight times key (rounding hf)"},
    {"kpool_compress/pooled", Unspecified::kActivation, "the pool key (rounding bf16 and hf)", "kpool_compress"},
    {"kpool_compress.backward/d_k", Unspecified::kActivation, "gradient of the keys", "kpool_compress.backward"},
    {"kpool_compress.backward/d_gate", Unspecified::kActivation, "gradient of the raw gate", "kpool_compress.backward"},
    {"hadamard_fp8.backward/d_x", Unspecified::kActivation, "gradient of the rows", "hadamard_fp8.backward"},
    {"head_weights/product", Unspecified::kActivation, "x W^T before the two factors"},
    {"head_weights.backward/d_x", Unspecified::kActivation, "gradient of the rows", "head_weights.backward"},
    {"index_scores.backward/d_q", Unspecified::kActivation, "gradient of the index queries", "index_scores.backward"},
    {"index_scores.backward/d_pooled", Unspecified::kActivation, "gradient of the pool keys", "index_scores.backward"},

    {"mla_attention/scores", Unspecified::kActivation, "q k^T before its factor (every attention)"},
    {"mla_attention/p_unnormalised", Unspecified::kActivation, "exp(score - largest) as the values see it"},
    {"mla_attention/p", Unspecified::kActivation, "probabilities", "mla_attention"},
    {"mla_attention/o", Unspecified::kActivation, "the output", "mla_attention sparse_attention"},
    {"mla_attention.backward/p_unnormalised", Unspecified::kActivation, "exp(score - largest), recomputed"},
    {"mla_attention.backward/o", Unspecified::kActivation, "the output, recomputed"},
    {"mla_attention.backward/p", Unspecified::kActivation, "probabilities as d_v sees them"},
    {"mla_attention.backward/d_p", Unspecified::kActivation, "gradient of the probabilities"},
    {"mla_attention.backward/d_scores", Unspecified::kActivation, "gradient of the scores"},
    {"mla_attention.backward/d_q", Unspecified::kActivation, "gradient of the queries", "mla_attention.backward sparse_attention.backward segment_attention.backward"},
    {"mla_attention.backward/d_k", Unspecified::kActivation, "gradient of the keys", "mla_attention.backward segment_attention.backward"},
    {"mla_attention.backward/d_v", Unspecified::kActivation, "gradient of the values", "mla_attention.backward segment_attention.backward"},
    {"sparse_attention.backward/d_c_as_key", Unspecified::kActivation, "gradient of the latents as keys"},
    {"sparse_attention.backward/d_c_as_value", Unspecified::kActivation, "gradient of the latents as values"},
    {"sparse_attention.backward/d_c", Unspecified::kActivation, "their sum", "sparse_attention.backward"},
    {"segment_attention/p", Unspecified::kActivation, "exp(score - largest) as the values see it"},
    {"segment_attention/o", Unspecified::kActivation, "the output", "segment_attention"},

    {"router.backward/d_x", Unspecified::kActivation, "gradient of the rows", "router.backward"},
    {"combine/product", Unspecified::kActivation, "weight times expert output"},
    {"combine/partial_sum", Unspecified::kActivation, "the sum after each expert"},
    {"combine/y", Unspecified::kActivation, "the output", "combine"},
    {"combine.backward/d_expert_out", Unspecified::kActivation, "gradient of an expert's output", "combine.backward"},
    {"swiglu/silu", Unspecified::kActivation, "silu(gate)"},
    {"swiglu/y", Unspecified::kActivation, "the output", "swiglu"},
    {"swiglu.backward/silu", Unspecified::kActivation, "silu(gate), recomputed"},
    {"swiglu.backward/d_silu", Unspecified::kActivation, "d_y times up"},
    {"swiglu.backward/d_up", Unspecified::kActivation, "gradient of up", "swiglu.backward"},
    {"swiglu.backward/d_gate", Unspecified::kActivation, "gradient of gate", "swiglu.backward"},
    {"residual_add/y", Unspecified::kActivation, "the sum", "residual_add"},

    {"cross_entropy.backward/d_logits", Unspecified::kActivation, "gradient of the logits", "cross_entropy.backward"},
    {"rope_2d/y", Unspecified::kActivation, "the rotated rows", "rope_2d rope_2d.backward"},
    {"gelu/y", Unspecified::kActivation, "the output", "gelu"},
    {"gelu.backward/d_x", Unspecified::kActivation, "gradient of the input", "gelu.backward"},
    {"feature_scatter/y", Unspecified::kActivation, "the placed features", "feature_scatter"},
};

inline constexpr std::size_t kRoundingPointCount = sizeof(kRoundingPoints) / sizeof(kRoundingPoints[0]);

/// The place of a point in kRoundingPoints.
struct Point {
  std::size_t index;
};

/// A name that is not in the table does not compile.
consteval Point point(std::string_view name) {
  for (std::size_t i = 0; i < kRoundingPointCount; ++i)
    if (kRoundingPoints[i].name == name) return {i};
  throw "no such rounding point";
}

}  // namespace assay
