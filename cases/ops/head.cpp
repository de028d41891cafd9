#include "cases/ops/head.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& head_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "embed",
       .summary = "rows of the embedding table",
       .attributes = {},
       .inputs =
           {
               index("ids", "T", "token ids in [0, V)"),
               real("table", "V C", "one row per token id"),
           },
       .outputs =
           {
               real("x", "T C", "hidden rows"),
           },
       .source = "model.md 3"},
      {.name = "cross_entropy",
       .summary = "loss = log sum exp(logits) - logits[label]",
       .attributes =
           {
               with_default("ignore_index", kInteger, -100, "label of tokens without a loss"),
           },
       .inputs =
           {
               real("logits", "T V", "scores"),
               index("labels", "T", "token ids or ignore_index"),
           },
       .outputs =
           {
               real("loss", "T", "loss of each token, 0 where ignored"),
               real("lse", "T", "log of the sum of exponentials"),
               real("mean", "1", "mean over the tokens that count"),
           },
       .source = "model.md 10"},
      {.name = "aux_loss",
       .summary = "E * sum over experts of the chosen fraction times the mean softmax probability",
       .attributes =
           {
               required("topk", kInteger, "experts per token"),
           },
       .inputs =
           {
               real("logits", "T E", "raw router scores of all layers and counted tokens"),
           },
       .outputs =
           {
               real("loss", "1", "auxiliary loss, without its coefficient"),
           },
       .source = "model.md 10"},
      {.name = "mtp_shift",
       .summary = "ids moved left within each document",
       .attributes =
           {
               with_default("fill", kInteger, 0, "value at the end of each document"),
               with_default("by", kInteger, 1, "places"),
           },
       .inputs =
           {
               index("ids", "T", "ids, labels or mask"),
               optional_index("cu_seqlens", "S",
                              "document boundaries in tokens, first 0, last T; absent: one document"),
           },
       .outputs =
           {
               index("shifted", "T", "shifted values"),
           },
       .source = "megatron.md 7; model.md 11"},
  };
  return ops;
}

}  // namespace assay
