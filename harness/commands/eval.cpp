#include <algorithm>

#include <fmt/format.h>

#include "cases/config_fields.h"
#include "cases/error.h"
#include "cases/ops/op.h"
#include "harness/commands/commands.h"
#include "harness/evaluation.h"
#include "harness/json_tensor.h"
#include "harness/result_json.h"

namespace assay::harness {
namespace {

using nlohmann::json;

/// The file of an `eval`, read and checked key by key.
class CallFile {
 public:
  CallFile(const EvalOptions& options, const OpSpec& spec) : spec_(spec) {
    name_ = options.file == "-" ? "/dev/stdin" : options.file;
    document_ = read_json_object(name_);
    for (const auto& [key, value] : document_.items()) {
      if (key != "inputs" && key != "attributes" && key != "dtypes") {
        throw InputError(name_ + ": field " + key, "unknown", "allowed: inputs, attributes, dtypes");
      }
      if (!value.is_object()) {
        throw InputError(name_ + ": field " + key, fmt::format("a JSON {}", value.type_name()), "an object is needed");
      }
    }
    if (!document_.contains("inputs")) throw InputError(name_ + ": field inputs", "missing", "an object is needed");
    take_attributes(options.set);
    take_inputs();
  }

  OpCall call() && { return make_call(spec_, attributes_, std::move(inputs_)); }

 private:
  json part(const char* key) const { return document_.contains(key) ? document_.at(key) : json::object(); }

  void take_attributes(const std::vector<std::string>& replacements) {
    attributes_ = part("attributes");
    for (const std::string& replacement : replacements) {
      const std::size_t equals = replacement.find('=');
      if (equals == std::string::npos || equals == 0) {
        throw InputError("--set", "'" + replacement + "'", "NAME=VALUE is needed");
      }
      const std::string value = replacement.substr(equals + 1);
      json parsed = json::parse(value, nullptr, false);
      attributes_[replacement.substr(0, equals)] = parsed.is_discarded() ? json(value) : std::move(parsed);
    }
    // A real attribute may be written as hex, like a value.
    for (const AttributeSpec& attribute : spec_.attributes) {
      const auto found = attributes_.find(attribute.name);
      if (attribute.kind != AttributeKind::kReal || found == attributes_.end() || !found->is_string()) continue;
      if (const auto number = double_from_text(found->get<std::string>())) *found = *number;
    }
  }

  DType dtype_of(const std::string& operand, const json& dtypes) const {
    const auto spec = std::find_if(spec_.inputs.begin(), spec_.inputs.end(),
                                   [&](const OperandSpec& input) { return input.name == operand; });
    const bool index = spec != spec_.inputs.end() && spec->kind == OperandKind::kIndex;
    if (!dtypes.contains(operand)) return index ? DType::kI64 : DType::kF64;
    const std::string where = name_ + ": field dtypes." + operand;
    const json& name = dtypes.at(operand);
    if (!name.is_string()) throw InputError(where, name.dump(), "a string is needed");
    return dtype_from_text(where, name.get<std::string>());
  }

  void take_inputs() {
    const json dtypes = part("dtypes");
    const json& inputs = document_.at("inputs");
    for (const auto& [operand, dtype] : dtypes.items()) {
      if (!inputs.contains(operand)) {
        throw InputError(name_ + ": field dtypes." + operand, "no such input", "a name of inputs is needed");
      }
    }
    for (const auto& [operand, values] : inputs.items()) {
      inputs_[operand] = tensor_from_json(name_ + ": operand " + operand, values, dtype_of(operand, dtypes));
    }
  }

  const OpSpec& spec_;
  std::string name_;
  json document_;
  json attributes_;
  std::map<std::string, Tensor> inputs_;
};

}  // namespace

int run_eval(const EvalOptions& options) {
  const OpSpec& spec = op_named(options.op);
  const OpCall call = CallFile(options, spec).call();
  print(to_text(evaluation_json(call, {options.scalar, options.bits, kMostBits, options.digits})));
  return 0;
}

}  // namespace assay::harness
