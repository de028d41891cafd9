#include "cases/ops/vision.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& vision_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "patch_embed",
       .summary = "linear map of flattened patches",
       .attributes = {},
       .inputs =
           {
               real("x", "N P", "patches as (channel, time, height, width)"),
               real("weight", "C P", "convolution kernel, flattened"),
               optional_real("bias", "C", "added per channel"),
           },
       .outputs =
           {
               real("y", "N C", "patch rows"),
           },
       .source = "model.md 12.1"},
      {.name = "rope_2d",
       .summary = "axial rotary embedding: rotate-half pairs (i, i + D/2), angles [h, w, h, w]",
       .attributes =
           {
               with_default("theta", kReal, 10000.0, "base of the frequencies"),
           },
       .inputs =
           {
               real("x", "T H D", "queries or keys; 4 divides D"),
               index("positions", "T 2", "row and column of each patch"),
           },
       .outputs =
           {
               real("y", "T H D", "rotated rows"),
           },
       .source = "model.md 12.2"},
      {.name = "segment_attention",
       .summary = "full bidirectional softmax attention inside each segment",
       .attributes =
           {
               required("scale", kReal, "factor of the scores"),
           },
       .inputs =
           {
               real("q", "T H D", "queries"),
               real("k", "T H D", "keys"),
               real("v", "T H D", "values"),
               index("cu_seqlens", "S", "segment boundaries in patches, first 0, last T"),
           },
       .outputs =
           {
               real("o", "T H D", "output"),
               real("lse", "T H", "log of the sum of exponentials"),
           },
       .source = "model.md 12.3"},
      {.name = "gelu",
       .summary = "y = x/2 (1 + erf(x / sqrt 2))",
       .attributes = {},
       .inputs =
           {
               real("x", "... N", "input"),
           },
       .outputs =
           {
               real("y", "... N", "output"),
           },
       .source = "model.md 12.5"},
      {.name = "downsample",
       .summary = "s x s convolution of stride s over each group of s*s consecutive patches",
       .attributes = {},
       .inputs =
           {
               real("x", "M*s*s C", "patch rows in merge-block order"),
               real("weight", "O C s s", "kernel"),
               optional_real("bias", "O", "added per channel"),
           },
       .outputs =
           {
               real("y", "M O", "merged rows"),
           },
       .source = "model.md 12.4"},
      {.name = "feature_scatter",
       .summary = "features replace the embedding rows of placeholder tokens, in order",
       .attributes =
           {
               required("token_id", kInteger, "placeholder (image_token_id)"),
           },
       .inputs =
           {
               real("x", "T C", "embedding rows"),
               index("ids", "T", "token ids"),
               real("features", "F C", "image and video features; as many as placeholders"),
           },
       .outputs =
           {
               real("y", "T C", "embedding rows with features"),
           },
       .source = "model.md 12"},
  };
  return ops;
}

}  // namespace assay
