#include "cases/ops/ffn.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& ffn_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "swiglu",
       .summary = "y = silu(min(gate, limit)) * clamp(up, -limit, limit)",
       .attributes =
           {
               nullable("limit", kReal, "clamp before SiLU, one-sided for gate; null: none"),
           },
       .inputs =
           {
               real("gate", "... N", "gate half"),
               real("up", "... N", "linear half"),
           },
       .outputs =
           {
               real("y", "... N", "product"),
           },
       .source = "model.md 8.1"},
      {.name = "residual_add",
       .summary = "y = a + b",
       .attributes = {},
       .inputs =
           {
               real("a", "... C", "residual"),
               real("b", "... C", "branch"),
           },
       .outputs =
           {
               real("y", "... C", "sum"),
           },
       .source = "model.md 11"},
  };
  return ops;
}

}  // namespace assay
