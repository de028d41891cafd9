// Judging one op call: outputs of a candidate against the truth given the call's actual inputs, under a rounding model.
//
// Real outputs are held to two limits, both derived:
//   bound   per element: what any implementation may be off that keeps the model (scalar Bound, without the op's own
//           store), and then one store. A guarantee, and therefore wide where many terms are summed: it allows every
//           order, and every sign of every rounding error at once.
//   spread  per tensor (2-norm): what implementations that keep the model are off (harness/ensemble.h). A statement with
//           confidence 1 - kDoubt, and tight: the rounding errors of many elements do not conspire.
// A tensor must keep both. Indices and codes must be equal, choices equal as sets up to exact ties and margins.
#pragma once

#include <string>
#include <vector>

#include "cases/ops/op.h"
#include "harness/result.h"
#include "reference/context.h"

namespace assay::harness {

struct ObservedOutput {
  std::string output;    ///< of the op
  std::string recorded;  ///< name in messages and results
  Tensor tensor;
  bool is_choice = false;  ///< ids or pools of select_tokens, experts of router: sets per row
};

struct JudgeSettings {
  int bits = 128;      ///< of the truth; doubled until every decision is certain
  bool spread = true;  ///< judge by ensemble as well
};

/// One check per output, in their order; stage and scope are left to the caller. Throws InputError for what the op
/// refuses about its operands.
std::vector<Check> judge_op(const OpCall& call, const std::vector<ObservedOutput>& outputs,
                            const reference::RoundingModel& model, const JudgeSettings& settings);

}  // namespace assay::harness
