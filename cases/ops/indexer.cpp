#include "cases/ops/indexer.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& indexer_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "kpool_compress",
       .summary = "one key per complete pool: softmax over its slots, per channel, of gate + ape",
       .attributes =
           {
               required("kpool", kInteger, "tokens of a pool"),
               with_default("rounding", kText, "none",
                            "none, bf16 (one rounding of the result) or hf (weights, products and sum)"),
           },
       .inputs =
           {
               real("k", "T D", "normalised index keys"),
               optional_real("gate", "T D", "raw gate; absent: 0"),
               optional_real("ape", "kpool D", "bias per slot; absent: 0"),
               optional_index(
                   "cu_seqlens", "S",
                   "document boundaries in tokens, last T; tokens before the first are in no document; absent: one "
                   "document"),
           },
       .outputs =
           {
               real("pooled", "P D", "pool keys; pools restart per document, only complete ones exist"),
               index("first_token", "P", "index of the first token of each pool"),
               real("weights", "P kpool D", "softmax weights"),
               real("exp_of_score_minus_max", "P kpool D", "exp(gate + ape - its maximum over the slots)"),
           },
       .source = "model.md 7.2; megatron.md 3.3"},
      {.name = "hadamard_fp8",
       .summary = "orthonormal Hadamard transform of each row, then E4M3 with a power-of-two row scale, dequantised",
       .attributes =
           {
               with_default("quantize", kBool, true, "false: only the transform (y = rotated)"),
               with_default("amax_floor", kReal, 1e-4, "floor of the row maximum"),
               with_default("rotate", kBool, true, "false: the rows are rotated already"),
           },
       .inputs =
           {
               real("x", "... D", "rows; D is a power of two"),
           },
       .outputs =
           {
               real("y", "... D", "dequantised rows"),
               real("rotated", "... D", "rows after the transform"),
               real("transformed", "... D", "the same before its rounding to bf16"),
               real("amax", "... 1", "largest magnitude of a rotated row, at least amax_floor"),
               real("scale", "... 1", "2^ceil(log2(amax / 448))"),
               index("codes", "... D", "E4M3 bytes"),
           },
       .source = "megatron.md 3.4"},
      {.name = "fp8_row_scale",
       .summary = "power-of-two scale of a row from its maximum",
       .attributes =
           {
               with_default("amax_floor", kReal, 1e-4, "floor of the row maximum"),
           },
       .inputs =
           {
               real("amax", "... N", "largest magnitude of each row"),
           },
       .outputs =
           {
               real("scale", "... N", "2^ceil(log2(max(amax, amax_floor) / 448))"),
           },
       .source = "megatron.md 3.4"},
      {.name = "head_weights",
       .summary = "w = x W^T * Hi^-0.5 * head_dim^-0.5",
       .attributes =
           {
               required("head_dim", kInteger, "index head dimension"),
           },
       .inputs =
           {
               real("x", "T C", "hidden rows"),
               real("weight", "Hi C", "one row per index head"),
           },
       .outputs =
           {
               real("w", "T Hi", "weight of each index head, f32"),
           },
       .source = "model.md 7.2; megatron.md 3.2"},
      {.name = "index_scores",
       .summary = "s = sum over heads of w * relu(q . pooled) * scale",
       .attributes =
           {
               with_default("relu", kBool, true, "clamp the dots at zero"),
               nullable("scale", kReal, "factor of the dots; null: 1 (it is in w)"),
           },
       .inputs =
           {
               real("q", "T Hi D", "index queries"),
               real("pooled", "P D", "pool keys"),
               real("w", "T Hi", "head weights"),
           },
       .outputs =
           {
               real("s", "T P", "score of every pool"),
           },
       .source = "model.md 7.2; megatron.md 3.5"},
      {.name = "select_tokens",
       .summary = "the best topk / kpool visible pools of each query as token ids, then its tail",
       .attributes =
           {
               required("topk", kInteger, "token budget, a multiple of kpool"),
               required("kpool", kInteger, "tokens of a pool"),
               with_default("always_select_tail", kBool, true, "append the tokens of the own incomplete pool"),
           },
       .inputs =
           {
               real("scores", "T P", "score of every pool"),
               index("first_token", "P", "first token of each pool"),
               index("visible_start", "T", "first visible token of each query"),
               index("visible_end", "T", "one past the last visible token; a pool is visible if all its tokens are"),
           },
       .outputs =
           {
               index("ids", "T W", "token ids, -1 in unused places (W = topk + kpool - 1 with a tail, else topk)"),
               index("pools", "T B", "pool ids, -1 in unused places"),
               real("margin", "T", "lowest selected minus highest rejected visible score"),
               index("tied", "T P", "1 for pools that are equal at the threshold of the row, selected and rejected"),
               real("visible_scores", "T P", "scores, -inf where the pool is not visible"),
           },
       .source = "model.md 7.2; megatron.md 3.5"},
      {.name = "indexer_loss",
       .summary = "divergence of softmax(scores) from the attention summed over heads; trains the indexer",
       .attributes =
           {
               required("coefficient", kReal, "factor of the loss"),
               nullable("rows", kInteger, "divisor of the sum over rows; null: the rows with a visible token"),
           },
       .inputs =
           {
               real("scores", "T S", "index score of every token"),
               real("attention", "T H S", "attention probabilities, detached; H = 1 if summed over heads already"),
               optional_index("visible", "T S", "not 0 where the row sees the token; absent: everywhere"),
           },
       .outputs =
           {
               real("loss", "1", "coefficient / rows * sum of row_loss"),
               real("row_loss", "T", "sum of target (ln max(target, 1e-10) - log-softmax); 0 if nothing is visible"),
           },
       .source = "megatron.md 3.6"},
  };
  return ops;
}

}  // namespace assay
