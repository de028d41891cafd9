// cases/vectors.json, and the op calls it makes of a case.
//
// {"assay_vectors": 1, "groups": {"<group>": {"calls": [call...], "ignored": {"out.x": "why it is not judged"}}}}
//
// call: {"op": name,
//   "attributes": {attribute: expression},
//   "inputs": {operand: binding},
//   "outputs": {output: tensor name, binding, or a list of them} or, for an op that decides, "choice": {"ids": tensor
//   name}: ids are
//             compared as sets per row, exact ties excused. Tensors that the case lacks are passed over. A binding may
//             be a concat: recorded parts that are one output of the op. Gradients (grad.*) are the outputs "d_x" of
//             backward ops (cases/ops/backward.h).
//   "needs": [tensor names], "when": expression   the call is made only if the case has them all, and if this is true
//   "repeat": [{"variable": v, "count": expression or factors} or {"variable": v, "in": expression of a list}]
//             the call is made for every value; {v} in names and "$v" in expressions stand for it
//   "profile": name, "flags": {flag: expression}   the rounding contract of the recorded implementation, on top of
//             Megatron's defaults (absent: the group's, else what the recorded dtypes imply)
//   "report": "why"   the distance is reported without a verdict}
// binding: a tensor name, or {"tensor": name | "concat": [names] | "values": [expressions] | "cumulative": expression
// of a list,
//   "as": dtype, "select": [axis, expression], "order": [axes], "shape": [expressions, at most one -1],
//   "optional": true, "when": expression}, applied in this order; "cumulative" makes boundaries of lengths.
// expression: a JSON value, {"map": expression, "to": {text: value}}, or a text
//   "$flag"             a flag of the case's metadata (null if absent), or a repeat variable
//   "@tensor.axis"      a dimension of a tensor, "@tensor.axis/expression" an exact quotient
//   "dtype(tensor)==X"  true or false;  "has(tensor)" true or false;  "not <expression>"; "<expression>|<default>"
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cases/ops/op.h"
#include "cases/flags.h"
#include "cases/safetensors.h"
#include "harness/op_judge.h"

namespace assay::harness {

struct VectorCall {
  OpCall call;
  std::vector<ObservedOutput> outputs;  ///< under their full tensor names, in the op's layout
  std::string report;                   ///< not empty: no verdict, and why
  std::string profile;                  ///< of the contract that the recorded implementation keeps; empty: not known
  Flags flags;
};

/// One case of a vector file.
struct VectorCase {
  std::string name;  ///< "<group>.<case>"
  std::string group;
  nlohmann::json flags;
  std::map<std::string, Tensor> tensors;  ///< by name without the case's prefix
};

class VectorMap {
 public:
  static VectorMap read(const std::filesystem::path& file);
  bool knows(const std::string& group) const;
  /// The calls of a case. `unclaimed` receives the case's outputs and gradients that no call claims and no "ignored"
  /// entry explains.
  std::vector<VectorCall> calls(const VectorCase& vector_case, std::vector<std::string>& unclaimed) const;

 private:
  std::filesystem::path file_;
  nlohmann::json groups_;
};

/// The cases of a vector file in name order.
std::vector<VectorCase> read_vector_cases(const std::filesystem::path& file);

}  // namespace assay::harness
