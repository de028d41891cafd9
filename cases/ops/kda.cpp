#include "cases/ops/kda.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& kda_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "kda_conv",
       .summary = "depthwise causal convolution, then SiLU",
       .attributes = {},
       .inputs =
           {
               real("u", "T Ch", "channels before the convolution"),
               real("weight", "Ch W", "taps; the last multiplies the current token"),
               optional_index("cu_seqlens", "S",
                              "document boundaries in tokens, first 0, last T; absent: one document"),
               optional_real("initial", "W-1 Ch", "inputs before the first token of the first document; absent: zero"),
           },
       .outputs =
           {
               real("y", "T Ch", "after SiLU"),
           },
       .source = "model.md 6.2; megatron.md 2.3"},
      {.name = "kda_gate",
       .summary = "log decay from the raw gate",
       .attributes =
           {
               nullable(
                   "lower_bound", kReal,
                   "g = lower_bound * sigmoid(exp(A_log) (f + dt_bias)); null: g = -exp(A_log) softplus(f + dt_bias)"),
           },
       .inputs =
           {
               real("f", "T H D", "raw gate"),
               real("A_log", "H", "log of the rate per head"),
               optional_real("dt_bias", "H*D", "added to f per head and channel"),
           },
       .outputs =
           {
               real("g", "T H D", "log decay, negative"),
           },
       .source = "model.md 6.4; megatron.md 2.3"},
      {.name = "beta",
       .summary = "beta = sigmoid(b)",
       .attributes = {},
       .inputs =
           {
               real("b", "T H", "raw step size"),
           },
       .outputs =
           {
               real("beta", "T H", "step size in (0, 1)"),
           },
       .source = "model.md 6.5"},
      {.name = "delta_rule",
       .summary = "S = diag(exp g) S + beta k (v - S^T k)^T, o = S^T q: the recurrence, token by token",
       .attributes =
           {
               nullable("scale", kReal, "factor of the query; null: K^-0.5"),
           },
       .inputs =
           {
               real("q", "T H K", "queries; H divides Hv"),
               real("k", "T H K", "keys"),
               real("v", "T Hv V", "values"),
               real("g", "T Hv K", "log decay per key channel"),
               real("beta", "T Hv", "step size"),
               optional_real("initial_state", "S Hv K V", "state before each document; absent: zero"),
               optional_index("cu_seqlens", "S+1", "document boundaries in tokens; absent: one document"),
           },
       .outputs =
           {
               real("o", "T Hv V", "the updated state read with the scaled query"),
               real("final_state", "S Hv K V", "state after each document"),
           },
       .source = "model.md 6.6; megatron.md 2.4, 2.5"},
      {.name = "delta_rule_chunked",
       .summary = "the same recurrence in the chunked form",
       .attributes =
           {
               nullable("scale", kReal, "factor of the query; null: K^-0.5"),
               with_default("chunk", kInteger, 64, "tokens of a chunk"),
           },
       .inputs =
           {
               real("q", "T H K", "queries; H divides Hv"),
               real("k", "T H K", "keys"),
               real("v", "T Hv V", "values"),
               real("g", "T Hv K", "log decay per key channel"),
               real("beta", "T Hv", "step size"),
               optional_real("initial_state", "S Hv K V", "state before each document; absent: zero"),
               optional_index("cu_seqlens", "S+1", "document boundaries in tokens; absent: one document"),
           },
       .outputs =
           {
               real("o", "T Hv V", "the updated state read with the scaled query"),
               real("final_state", "S Hv K V", "state after each document"),
           },
       .source = "model.md 6 (chunked form); megatron.md 2.4"},
      {.name = "kda_attention",
       .summary = "fused: gate, beta, l2norm of q and k, then the recurrence",
       .attributes =
           {
               nullable("lower_bound", kReal, "bound of the gate; null: unbounded"),
               nullable("scale", kReal, "factor of the query; null: K^-0.5"),
               with_default("l2norm_eps", kReal, 1e-6, "eps of the q and k norms, inside the root"),
               nullable("chunk", kInteger, "tokens of a chunk of the chunked form; null: the recurrence"),
           },
       .inputs =
           {
               real("q", "T H K", "queries before their norm"),
               real("k", "T H K", "keys before their norm"),
               real("v", "T H V", "values"),
               real("gate", "T H K", "raw gate"),
               real("A_log", "H", "log of the gate's factor"),
               optional_real("dt_bias", "H*K", "added to the raw gate"),
               real("beta_logits", "T H", "step size before the sigmoid"),
               optional_real("initial_state", "S H K V", "state before each document; absent: zero"),
               optional_index("cu_seqlens", "S+1", "document boundaries in tokens; absent: one document"),
               optional_real("stored_q", "T H K", "normalised queries as an implementation stored them"),
               optional_real("stored_k", "T H K", "normalised keys as an implementation stored them"),
               optional_real("stored_g", "T H K", "log decay as an implementation stored it"),
               optional_real("stored_beta", "T H", "step size as an implementation stored it"),
           },
       .outputs =
           {
               real("o", "T H V", "the updated state read with the scaled query"),
               real("final_state", "S H K V", "state after each document"),
               real("g", "T H K", "log decay"),
               real("beta", "T H", "step size"),
           },
       .source = "model.md 6.3 to 6.6; megatron.md 2.3, 2.4"},
  };
  return ops;
}

}  // namespace assay
