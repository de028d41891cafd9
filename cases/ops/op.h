// An op call is a value: kind, attributes, path, rank, inputs, outputs (design section 2).
// One header per op family in this folder declares its ops: attributes, operands with symbolic shapes and source; their
// rounding contracts are cases/contracts.json.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cases/tensor.h"

namespace assay {

enum class OperandKind { kReal, kIndex };

/// Dimensions are words separated by blanks: a number, a symbol ("T"), or a product or sum of them without blanks
/// ("n*(n+2)" is written "n*n+2*n"). "..." as the first word stands for any leading dimensions, the same in all
/// operands that use it.
struct OperandSpec {
  std::string name;
  std::string dims;
  OperandKind kind = OperandKind::kReal;
  bool optional = false;
  std::string meaning;
};

enum class AttributeKind { kInteger, kReal, kBool, kText, kIntegers };

struct AttributeSpec {
  std::string name;
  AttributeKind kind;
  /// Value when the call has none; a discarded json (std::nullopt) means required; json null means "absent is allowed".
  std::optional<nlohmann::json> fallback;
  std::string meaning;
};

struct OpSpec {
  std::string name;
  std::string summary;
  std::vector<AttributeSpec> attributes;
  std::vector<OperandSpec> inputs;
  std::vector<OperandSpec> outputs;
  std::string source;  ///< section of shared/spec
};

struct OpCall {
  const OpSpec* spec = nullptr;
  nlohmann::json attributes = nlohmann::json::object();  ///< complete: defaults filled in
  std::string path;                                      ///< "layers.3.attn.delta_rule"
  int rank = 0;
  std::map<std::string, Tensor> inputs;
  std::map<std::string, Tensor> outputs;     ///< what the candidate produced; empty when only the truth is asked
  std::map<std::string, std::int64_t> dims;  ///< symbols bound by the operands and integer attributes
};

/// All ops, in catalogue order.
const std::vector<OpSpec>& op_specs();
/// Throws InputError with the nearest names when there is none.
const OpSpec& op_named(std::string_view name);

/// Checks and completes a call: unknown or missing attribute or operand, wrong kind, and dimensions that do not fit
/// together are each one InputError that names op, operand or attribute, what was found and what is allowed.
OpCall make_call(const OpSpec& spec, const nlohmann::json& attributes, std::map<std::string, Tensor> inputs,
                 std::string path = "");

/// The declared shape of an output under the call's dims, if every symbol is bound.
std::optional<Shape> output_shape(const OpCall& call, const OperandSpec& output);

}  // namespace assay
