#include "cases/ops/norm.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& norm_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "rms_norm",
       .summary = "y = x / sqrt(mean(x^2) + eps) * weight",
       .attributes =
           {
               required("eps", kReal, "added to the mean square, inside the root"),
           },
       .inputs =
           {
               real("x", "... N", "rows to normalise"),
               optional_real("weight", "N", "factor per channel (not 1 + w); absent: 1"),
           },
       .outputs =
           {
               real("y", "... N", "normalised rows"),
           },
       .source = "model.md 4"},
      {.name = "layer_norm",
       .summary = "y = (x - mean) / sqrt(variance + eps) * weight + bias",
       .attributes =
           {
               required("eps", kReal, "added to the variance, inside the root"),
           },
       .inputs =
           {
               real("x", "... N", "rows to normalise"),
               real("weight", "N", "factor per channel"),
               optional_real("bias", "N", "added per channel"),
           },
       .outputs =
           {
               real("y", "... N", "normalised rows"),
           },
       .source = "model.md 7.2, 12, 14"},
      {.name = "gated_rms_norm",
       .summary = "y = weight * rms_norm(o) * sigmoid(z), per head",
       .attributes =
           {
               required("eps", kReal, "added to the mean square, inside the root"),
           },
       .inputs =
           {
               real("o", "... D", "output of the delta rule"),
               real("z", "... D", "raw output gate"),
               real("weight", "D", "factor per channel, shared by all heads"),
           },
       .outputs =
           {
               real("y", "... D", "gated rows"),
           },
       .source = "model.md 6.7; megatron.md 2.3"},
      {.name = "l2norm",
       .summary = "y = x / sqrt(sum(x^2) + eps)",
       .attributes =
           {
               with_default("eps", kReal, 1e-6, "added to the sum of squares, inside the root"),
           },
       .inputs =
           {
               real("x", "... D", "query or key rows, per head"),
           },
       .outputs =
           {
               real("y", "... D", "rows of unit length"),
           },
       .source = "model.md 6.3; megatron.md 2.3"},
  };
  return ops;
}

}  // namespace assay
