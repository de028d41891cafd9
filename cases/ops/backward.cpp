#include "cases/ops/backward.h"

#include <set>
#include <string>

namespace assay {
namespace {

/// Decisions, layouts and quantisation have no derivative.
const std::set<std::string> kNone = {
    "dequantize_block", "quantize_block", "fp8_scale",      "linear_fp8",      "fp8_row_scale",     "select_tokens",
    "mtp_shift",        "pack_sequences", "cp_dense_order", "cp_packed_order", "cp_headwise_order",
};

/// Inputs that are constants of the derivative: the choice bias, the detached target of the indexer's loss, stored
/// intermediate values (through which the gradient goes on to what they were computed from).
const std::set<std::string> kConstants = {
    "router/bias",
    "indexer_loss/attention",
    "indexer_loss/visible",
    "mhc_layer/h_pre",
    "mhc_layer/h_post",
    "mhc_layer/h_res",
    "kda_attention/stored_q",
    "kda_attention/stored_k",
    "kda_attention/stored_g",
    "kda_attention/stored_beta",
};

/// Outputs that decide or describe and have no cotangent.
const std::set<std::string> kDetached = {"router/margin", "router/group_margin", "hadamard_fp8/amax",
                                         "hadamard_fp8/scale"};

}  // namespace

std::vector<OpSpec> backward_specs(const std::vector<OpSpec>& forward) {
  std::vector<OpSpec> twins;
  for (const OpSpec& op : forward) {
    if (kNone.count(op.name)) continue;
    OpSpec twin = op;
    twin.name = op.name + ".backward";
    twin.summary = "gradients of " + op.name + " with respect to its real inputs";
    twin.outputs.clear();
    for (const OperandSpec& output : op.outputs)
      if (output.kind == OperandKind::kReal && !kDetached.count(op.name + "/" + output.name))
        twin.inputs.push_back({"d_" + output.name, output.dims, OperandKind::kReal, true, "cotangent; absent: zero"});
    for (const OperandSpec& input : op.inputs)
      if (input.kind == OperandKind::kReal && !kConstants.count(op.name + "/" + input.name))
        twin.outputs.push_back(
            {"d_" + input.name, input.dims, OperandKind::kReal, input.optional, "gradient of " + input.name});
    twins.push_back(std::move(twin));
  }
  return twins;
}

}  // namespace assay
