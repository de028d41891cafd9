#include "cases/ops/router.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& router_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "router",
       .summary = "sigmoid scores, the topk best of score + bias, normalised weights",
       .attributes =
           {
               required("topk", kInteger, "experts per token"),
               with_default("n_group", kInteger, 1, "groups of experts"),
               with_default("topk_group", kInteger, 1, "groups that may be chosen from"),
               with_default("norm_topk_prob", kBool, true, "divide by the sum of the chosen scores"),
               with_default("scale", kReal, 1.0, "factor of the weights (routed_scaling_factor)"),
               with_default("sum_eps", kReal, 1e-20, "added to the sum of the chosen scores"),
           },
       .inputs =
           {
               real("x", "T C", "hidden rows"),
               real("weight", "E C", "one row per expert"),
               optional_real("bias", "E", "e_score_correction_bias: for the choice only"),
           },
       .outputs =
           {
               real("logits", "T E", "raw scores"),
               index("experts", "T k=topk", "chosen experts"),
               real("weights", "T k=topk", "weight of each chosen expert"),
               real("margin", "T", "lowest chosen minus highest rejected choice score"),
               real("group_margin", "T", "lowest allowed minus highest excluded group score; infinity without groups"),
           },
       .source = "model.md 9"},
      {.name = "combine",
       .summary = "y = sum over slots of weight * expert output, plus the shared expert",
       .attributes = {},
       .inputs =
           {
               real("expert_out", "T k C", "outputs of the chosen experts"),
               real("weights", "T k", "weight of each slot"),
               optional_real("shared", "T C", "output of the shared expert"),
           },
       .outputs =
           {
               real("y", "T C", "output of the layer"),
           },
       .source = "model.md 8.2, 9; megatron.md 8"},
  };
  return ops;
}

}  // namespace assay
