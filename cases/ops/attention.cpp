#include "cases/ops/attention.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& attention_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "sparse_attention",
       .summary = "softmax attention of absorbed queries over selected latent rows",
       .attributes =
           {
               required("scale", kReal, "factor of the scores"),
               nullable("value_dim", kInteger, "leading channels of c that are the value; null: all D"),
           },
       .inputs =
           {
               real("q", "T H D", "absorbed queries"),
               real("c", "S D", "latent rows, keys and values of all heads"),
               index("ids", "T W", "selected token ids; -1 is none"),
           },
       .outputs =
           {
               real("o", "T H Dv=value_dim", "output; 0 in rows without ids"),
               real("lse", "T H", "log of the sum of exponentials"),
           },
       .source = "megatron.md 4; model.md 7.1"},
      {.name = "mla_attention",
       .summary = "softmax attention over selected tokens with keys and values per head",
       .attributes =
           {
               required("scale", kReal, "factor of the scores"),
           },
       .inputs =
           {
               real("q", "T H D", "queries"),
               real("k", "S H D", "keys"),
               real("v", "S H Dv", "values"),
               index("ids", "T W", "selected token ids; -1 is none"),
           },
       .outputs =
           {
               real("o", "T H Dv", "output; 0 in rows without ids"),
               real("weights", "T H S", "probabilities, 0 where not selected"),
               real("lse", "T H", "log of the sum of exponentials"),
           },
       .source = "model.md 7.1"},
  };
  return ops;
}

}  // namespace assay
