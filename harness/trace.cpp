#include "harness/trace.h"

#include <algorithm>
#include <fstream>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cases/error.h"
#include "harness/variables.h"

namespace assay::harness {
namespace {

using nlohmann::json;

struct StageRule {
  std::string stage;
  std::vector<std::string> recorded;
  std::vector<int> permute;
};

struct NameMap {
  reference::Conventions conventions;
  std::map<std::string, std::string> inputs;
  std::string judged;  ///< prefix of the names that must all be claimed by a stage
  std::vector<StageRule> stages;
};

[[noreturn]] void bad_field(const std::filesystem::path& file, const std::string& field, const std::string& found,
                            const std::string& allowed) {
  throw InputError(file.string() + ": field " + field, found, allowed);
}

const std::set<std::string> kInputNames = {"input_ids", "attention_mask", "cu_seqlens",
                                           "labels",    "pixel_values",   "image_grid_thw"};

StageRule read_rule(const std::filesystem::path& file, const json& entry, std::size_t i) {
  const std::string field = fmt::format("stages[{}]", i);
  if (!entry.is_object() || !entry.contains("stage") || !entry["stage"].is_string() || !entry.contains("recorded") ||
      !entry["recorded"].is_array()) {
    bad_field(file, field, "not {\"stage\": text, \"recorded\": [texts]}", "such an object is needed");
  }
  StageRule rule;
  rule.stage = entry["stage"];
  for (const json& name : entry["recorded"]) {
    if (!name.is_string()) bad_field(file, field + ".recorded", name.dump(), "texts are allowed");
    rule.recorded.push_back(name);
  }
  for (const auto& [key, value] : entry.items()) {
    if (key == "permute") {
      if (!value.is_array()) bad_field(file, field + ".permute", value.dump(), "a list of dimensions is needed");
      for (const json& axis : value) {
        const auto rank = static_cast<std::int64_t>(value.size());
        const bool fits = axis.is_number_integer() && axis >= 0 && axis < rank;
        if (!fits || std::count(value.begin(), value.end(), axis) != 1)
          bad_field(file, field + ".permute", value.dump(), "each dimension from 0 once");
        rule.permute.push_back(axis);
      }
    } else if (key != "stage" && key != "recorded") {
      bad_field(file, field + "." + key, "unknown", "stage, recorded and permute are allowed");
    }
  }
  return rule;
}

json parse_file(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw InputError(file.string(), "cannot be read", "a map of names (JSON) is needed");
  try {
    return json::parse(in);
  } catch (const json::exception& error) {
    throw InputError(file.string(), std::string("not JSON: ") + error.what(), "");
  }
}

NameMap read_map(const std::filesystem::path& file) {
  const json root = parse_file(file);
  if (!root.is_object() || root.value("assay_names", json()) != json(1)) {
    bad_field(file, "assay_names", "missing or not 1", "a map of names has \"assay_names\": 1");
  }
  NameMap map;
  for (const auto& [key, value] : root.items()) {
    if (key == "assay_names" || key == "title" || key == "gradients") continue;  // gradients: harness/gradients.cpp
    if (key == "judged" && value.is_string()) {
      map.judged = value;
    } else if (key == "conventions" && value.is_object()) {
      for (const auto& [name, setting] : value.items()) {
        if (name != "empty_row_attends_uniformly" || !setting.is_boolean()) {
          bad_field(file, "conventions." + name, setting.dump(),
                    "empty_row_attends_uniformly: true or false is allowed");
        }
        map.conventions.empty_row_attends_uniformly = setting;
      }
    } else if (key == "inputs" && value.is_object()) {
      for (const auto& [name, recorded] : value.items()) {
        if (!kInputNames.count(name) || !recorded.is_string()) {
          bad_field(file, "inputs." + name, recorded.dump(),
                    fmt::format("names for {} are allowed", fmt::join(kInputNames, ", ")));
        }
        map.inputs[name] = recorded;
      }
    } else if (key == "stages" && value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i) map.stages.push_back(read_rule(file, value[i], i));
    } else {
      bad_field(file, key, "unknown or of the wrong type",
                "assay_names, title, conventions, inputs, judged, stages and gradients are allowed");
    }
  }
  return map;
}

std::string for_layer(const std::string& text, std::int64_t layer) {
  return replaced(replaced(replaced(text, "layer", layer), "attention", 2 * layer), "ffn", 2 * layer + 1);
}

/// One row of a record's first dimension, without that dimension.
Tensor slice(const Tensor& tensor, std::int64_t row) {
  const Shape rest(tensor.shape().begin() + 1, tensor.shape().end());
  return tensor.rows(row, row + 1).reshaped(rest);
}

class Reader {
 public:
  Reader(const TensorFile& file, const NameMap& map, std::int64_t batch, Trace& trace)
      : file_(file), map_(map), batch_(batch), trace_(trace) {
    for (const auto& [input, name] : map.inputs) claimed_.insert(name);
  }

  void read(const ModelConfig& config) {
    for (const StageRule& rule : map_.stages) {
      const bool per_layer = rule.stage.find("{attention}") != std::string::npos ||
                             rule.stage.find("{ffn}") != std::string::npos ||
                             rule.stage.find("{layer}") != std::string::npos;
      const std::int64_t layers = per_layer ? config.num_hidden_layers : 1;
      for (std::int64_t layer = 0; layer < layers; ++layer)
        for (const std::string& name : rule.recorded) add(rule, for_layer(rule.stage, layer), for_layer(name, layer));
    }
    for (const auto& [name, tensor] : file_.tensors())
      if (name.rfind(map_.judged, 0) == 0 && !claimed_.count(name)) trace_.unmapped.push_back(name);
  }

 private:
  void add(const StageRule& rule, const std::string& stage, const std::string& name) {
    if (!file_.has(name)) {
      trace_.absent.push_back(name);
      return;
    }
    claimed_.insert(name);
    const Tensor& tensor = file_.at(name);
    const auto laid_out = [&](const Tensor& t) {
      if (rule.permute.empty()) return t;
      if (rule.permute.size() != t.shape().size()) {
        throw InputError(file_.path().string() + ": tensor " + name, "shape " + to_string(tensor.shape()),
                         fmt::format("{} dimensions are needed for the map's permute", rule.permute.size()));
      }
      return t.permuted(rule.permute);
    };
    if (stage.find("{row}") == std::string::npos) {
      trace_.stages[stage].push_back({name, laid_out(tensor)});
      return;
    }
    if (tensor.shape().empty() || tensor.shape()[0] != batch_) {
      throw InputError(file_.path().string() + ": tensor " + name, "shape " + to_string(tensor.shape()),
                       fmt::format("the first dimension must be the batch, {}", batch_));
    }
    for (std::int64_t b = 0; b < batch_; ++b)
      trace_.stages[replaced(stage, "row", b)].push_back({fmt::format("{}[{}]", name, b), laid_out(slice(tensor, b))});
  }

  const TensorFile& file_;
  const NameMap& map_;
  std::int64_t batch_;
  Trace& trace_;
  std::set<std::string> claimed_;
};

}  // namespace

Trace read_trace(const std::filesystem::path& trace_file, const std::filesystem::path& map_file,
                 const ModelConfig& config) {
  const NameMap map = read_map(map_file);
  const TensorFile file = TensorFile::open(trace_file);
  Trace trace;
  trace.conventions = map.conventions;
  const auto input = [&](const char* name) -> std::optional<Tensor> {
    const auto found = map.inputs.find(name);
    if (found == map.inputs.end() || !file.has(found->second)) return std::nullopt;
    return file.at(found->second);
  };
  const std::optional<Tensor> ids = input("input_ids");
  if (!ids) {
    throw InputError(trace_file.string(), "no input_ids", map_file.string() + " must name them under inputs.input_ids");
  }
  trace.inputs = {*ids,
                  input("attention_mask"),
                  input("cu_seqlens"),
                  input("labels"),
                  input("pixel_values"),
                  input("image_grid_thw")};
  if (ids->shape().size() != 2) {
    throw InputError(trace_file.string() + ": input_ids", "shape " + to_string(ids->shape()),
                     "[batch, tokens] is needed");
  }
  Reader(file, map, ids->shape()[0], trace).read(config);
  if (trace.stages.empty()) {
    throw InputError(trace_file.string(), "no recorded stage", "the names must be those of " + map_file.string());
  }
  return trace;
}

}  // namespace assay::harness
