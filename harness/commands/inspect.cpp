#include <fmt/format.h>

#include "cases/checkpoint.h"
#include "harness/commands/commands.h"
#include "harness/inventory.h"
#include "harness/result_json.h"

namespace assay::harness {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const std::vector<Total>& totals) {
  Json json = Json::object();
  for (const Total& total : totals) {
    json[total.name] = {{"tensors", total.tensors}, {"parameters", total.parameters}, {"bytes", total.bytes}};
  }
  return json;
}

Json to_json(const Checkpoint& checkpoint, const std::vector<TensorFault>& faults, bool with_tensors) {
  const Inventory inventory = inventory_of(checkpoint);
  Json json = {{"checkpoint", checkpoint.folder.string()},
               {"tensors", inventory.all.tensors},
               {"parameters", inventory.all.parameters},
               {"bytes", inventory.all.bytes},
               {"dtypes", to_json(inventory.dtypes)},
               {"groups", to_json(inventory.groups)},
               {"faults", Json::array()},
               {"unknown_fields", checkpoint.config.unknown_fields}};
  for (const TensorFault& fault : faults) {
    json["faults"].push_back({{"name", fault.name}, {"fault", fault.fault}, {"detail", fault.detail}});
  }
  if (!with_tensors) return json;
  json["tensor_list"] = Json::array();
  for (const Entry& entry : inventory.entries) {
    json["tensor_list"].push_back({{"name", entry.name},
                                   {"dtype", name_of(entry.dtype)},
                                   {"shape", entry.shape},
                                   {"parameters", entry.parameters},
                                   {"group", entry.group}});
  }
  return json;
}

std::string to_text(const std::vector<Total>& totals) {
  std::string text;
  for (const Total& total : totals) {
    text += fmt::format("  {:<16} {:>8} {:>18} {:>18}\n", total.name, total.tensors, total.parameters, total.bytes);
  }
  return text;
}

std::string to_text(const Checkpoint& checkpoint, const std::vector<TensorFault>& faults, bool with_tensors) {
  const Inventory inventory = inventory_of(checkpoint);
  std::string text;
  if (with_tensors) {
    for (const Entry& entry : inventory.entries) {
      text += fmt::format("{} {} {} {}\n", entry.name, name_of(entry.dtype), to_string(entry.shape), entry.parameters);
    }
    text += "\n";
  }
  text += fmt::format("{}\n  {:<16} {:>8} {:>18} {:>18}\n", checkpoint.folder.string(), "", "tensors", "parameters",
                      "bytes");
  text += to_text(inventory.dtypes) + "\n" + to_text(inventory.groups) + "\n" + to_text({inventory.all});
  for (const TensorFault& fault : faults) text += fmt::format("{}: {}: {}\n", fault.fault, fault.name, fault.detail);
  for (const std::string& field : checkpoint.config.unknown_fields) {
    text += fmt::format("unknown config field: {}\n", field);
  }
  return text + (faults.empty() ? "complete: every tensor that the config asks for, and no other\n"
                                : fmt::format("{} fault{}\n", faults.size(), faults.size() == 1 ? "" : "s"));
}

}  // namespace

int run_inspect_checkpoint(const InspectOptions& options) {
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  const std::vector<TensorFault> faults = audit(checkpoint);
  print(options.json ? to_text(to_json(checkpoint, faults, options.tensors))
                     : to_text(checkpoint, faults, options.tensors));
  return faults.empty() ? 0 : 1;
}

}  // namespace assay::harness
