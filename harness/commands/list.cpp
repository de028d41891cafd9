#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cases/case_file.h"
#include "cases/error.h"
#include "cases/formats.h"
#include "cases/ops/op.h"
#include "harness/commands/commands.h"
#include "harness/contract_table.h"
#include "harness/result_json.h"

namespace assay::harness {
namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path cases_folder(const ListOptions& options) {
  if (!options.cases.empty()) return options.cases;
#ifdef ASSAY_CASES_DIR
  if (std::filesystem::is_directory(ASSAY_CASES_DIR)) return ASSAY_CASES_DIR;
#endif
  return "cases";
}

std::string list_cases(const ListOptions& options) {
  const std::filesystem::path folder = cases_folder(options);
  const std::vector<CaseFile> cases = case_files_in(folder);
  if (options.json) {
    Json list = Json::array();
    for (const CaseFile& item : cases) {
      list.push_back({{"name", item.name},
                      {"title", item.title},
                      {"file", item.file.string()},
                      {"checkpoint", item.checkpoint.string()},
                      {"trace", item.trace.string()},
                      {"names", item.names.string()},
                      {"provenance", item.provenance}});
    }
    return to_text(list);
  }
  std::size_t width = 0;
  for (const CaseFile& item : cases) width = std::max(width, item.name.size());
  std::string text;
  for (const CaseFile& item : cases) text += fmt::format("{:<{}}  {}\n", item.name, width, item.title);
  return cases.empty() ? fmt::format("no case files in {}\n", folder.string()) : text;
}

const char* word(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kInteger:
      return "integer";
    case AttributeKind::kReal:
      return "real";
    case AttributeKind::kBool:
      return "bool";
    case AttributeKind::kText:
      return "text";
    case AttributeKind::kIntegers:
      return "integers";
  }
  ASSAY_CHECK(false);
  return "";
}

const char* word(OperandKind kind) { return kind == OperandKind::kReal ? "real" : "index"; }

Json to_json(const AttributeSpec& attribute) {
  Json json = {{"name", attribute.name}, {"kind", word(attribute.kind)}, {"required", !attribute.fallback}};
  if (attribute.fallback) json["default"] = *attribute.fallback;
  json["meaning"] = attribute.meaning;
  return json;
}

Json to_json(const OperandSpec& operand) {
  return {{"name", operand.name},
          {"kind", word(operand.kind)},
          {"dims", operand.dims},
          {"optional", operand.optional},
          {"meaning", operand.meaning}};
}

Json to_json(const OpSpec& op);

template <class Specs>
Json list_json(const Specs& specs) {
  Json list = Json::array();
  for (const auto& spec : specs) list.push_back(to_json(spec));
  return list;
}

Json to_json(const OpSpec& op) {
  return {{"name", op.name},
          {"summary", op.summary},
          {"attributes", list_json(op.attributes)},
          {"inputs", list_json(op.inputs)},
          {"outputs", list_json(op.outputs)},
          {"source", op.source}};
}

std::string operand_lines(const char* title, const std::vector<OperandSpec>& operands) {
  std::string text;
  for (const OperandSpec& operand : operands) {
    text += fmt::format("  {:<10} {} [{}]{}{}: {}\n", title, operand.name, operand.dims,
                        operand.kind == OperandKind::kIndex ? " index" : "", operand.optional ? " optional" : "",
                        operand.meaning);
  }
  return text;
}

std::string everything_about(const OpSpec& op) {
  std::string text = fmt::format("{}: {}\n", op.name, op.summary);
  for (const AttributeSpec& attribute : op.attributes) {
    const std::string fallback = !attribute.fallback             ? "required"
                                 : attribute.fallback->is_null() ? "may be absent"
                                                                 : "default " + attribute.fallback->dump();
    text += fmt::format("  {:<10} {} {}, {}: {}\n", "attribute", attribute.name, word(attribute.kind), fallback,
                        attribute.meaning);
  }
  text += operand_lines("input", op.inputs) + operand_lines("output", op.outputs);
  return text + fmt::format("  {:<10} shared/spec: {}\n", "source", op.source);
}

std::string names_of(const std::vector<OperandSpec>& operands) {
  std::vector<std::string> names;
  for (const OperandSpec& operand : operands) names.push_back(operand.name + (operand.optional ? "?" : ""));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string list_ops(const ListOptions& options) {
  const std::vector<OpSpec> chosen = options.name.empty() ? op_specs() : std::vector<OpSpec>{op_named(options.name)};
  if (options.contract) {
    const std::vector<Contract> contracts = contracts_of(options.rounding, DType::kBF16);
    return options.json ? to_text(contracts_json(contracts, chosen)) : contract_table(contracts, chosen);
  }
  if (options.json) return to_text(list_json(chosen));
  std::string text;
  if (!options.name.empty()) {
    for (const OpSpec& op : chosen) text += (text.empty() ? "" : "\n") + everything_about(op);
    return text;
  }
  std::size_t width = 0;
  for (const OpSpec& op : chosen) width = std::max(width, op.name.size());
  for (const OpSpec& op : chosen) {
    text += fmt::format("{:<{}}  ({}) -> ({}): {}\n", op.name, width, names_of(op.inputs), names_of(op.outputs),
                        op.summary);
  }
  return text;
}

std::string list_flags(const ListOptions& options) {
  if (options.json) {
    Json list = Json::array();
    for (const FlagSpec& flag : flag_specs())
      list.push_back({{"name", flag.name},
                      {"default", flag.fallback},
                      {"glm", flag.glm},
                      {"meaning", flag.meaning},
                      {"source", flag.source}});
    return to_text(list);
  }
  std::string text = fmt::format("{:<44} {:>8} {:>8}  {}\n", "flag", "default", "GLM", "meaning");
  for (const FlagSpec& flag : flag_specs())
    text += fmt::format("{:<44} {:>8} {:>8}  {}\n", flag.name, flag.fallback.dump(), flag.glm.dump(), flag.meaning);
  return text;
}

std::string list_formats(const ListOptions& options) {
  if (options.json) {
    Json list = Json::array();
    for (const Format* format : formats()) {
      list.push_back({{"name", format->name},
                      {"bits", format->has_sign + format->exponent_bits + format->mantissa_bits},
                      {"exponent_bits", format->exponent_bits},
                      {"mantissa_bits", format->mantissa_bits},
                      {"bias", format->bias},
                      {"max", json_number(format->max_finite)},
                      {"min", json_number(format->min_positive)},
                      {"unit_roundoff", json_number(format->unit_roundoff)}});
    }
    return to_text(list);
  }
  std::string text = fmt::format("{:<6} {:>4} {:>8} {:>8} {:>5} {:>22} {:>22} {:>13}\n", "format", "bits", "exponent",
                                 "mantissa", "bias", "max", "min", "unit roundoff");
  for (const Format* format : formats()) {
    text += fmt::format("{:<6} {:>4} {:>8} {:>8} {:>5} {:>22} {:>22} {:>13}\n", format->name,
                        format->has_sign + format->exponent_bits + format->mantissa_bits, format->exponent_bits,
                        format->mantissa_bits, format->bias, fmt::format("{}", format->max_finite),
                        fmt::format("{}", format->min_positive), fmt::format("{:a}", format->unit_roundoff));
  }
  return text;
}

}  // namespace

int run_list(const ListOptions& options) {
  if (options.what != "ops" && (!options.name.empty() || options.contract)) {
    throw InputError("list " + options.what, options.name.empty() ? "--contract" : "'" + options.name + "'",
                     "a name and --contract are for: assay list ops");
  }
  if (options.what != "cases" && !options.cases.empty()) {
    throw InputError("list " + options.what, "--cases", "a folder is for: assay list cases");
  }
  if (!options.contract && !(options.rounding == ContractOptions{}))
    throw InputError("list " + options.what, "--profile or --flag", "they are for: assay list ops --contract");
  print(options.what == "ops"       ? list_ops(options)
        : options.what == "formats" ? list_formats(options)
        : options.what == "flags"   ? list_flags(options)
                                    : list_cases(options));
  return 0;
}

}  // namespace assay::harness
