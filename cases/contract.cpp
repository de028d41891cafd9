// cases/contracts.json: {"assay_contracts": 1, "ops": {op: {"sums": [{"name", "format", "tree"}], "points": {value:
// format}, "attributes": {attribute: value}, "source": sections}}}: every op of the catalogue, every rounding point of
// it. "source" is given where the contract rests on more than the op's own sections. Formats, trees and values of
// attributes are rules:
//   {"flag": name, "on": rule, "off": rule}       by a switch
//   {"value_of": flag}                            the flag's value
//   {"value_of": flag, value: rule, ...}          by the text that the flag has
//   {profile: rule, ..., "else": rule}            by profile; "else" for those that are not named
//   anything else                                 itself
#include "cases/contract.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cases/error.h"
#include "cases/formats.h"
#include "cases/ops/op.h"

#ifndef ASSAY_CASES_DIR
#define ASSAY_CASES_DIR "cases"
#endif

namespace assay {
namespace {

using nlohmann::json;

const std::filesystem::path kFile = std::filesystem::path(ASSAY_CASES_DIR) / "contracts.json";

[[noreturn]] void refuse(const std::string& where, const std::string& found, const std::string& allowed) {
  throw InputError(kFile.string() + ": " + where, found, allowed);
}

json resolved(const json& rule, const std::string& profile, const Flags& flags, const std::string& where) {
  if (!rule.is_object()) return rule;
  if (rule.contains("flag")) {
    const bool on = flags.on(rule.at("flag").get<std::string>());
    return resolved(rule.at(on ? "on" : "off"), profile, flags, where);
  }
  if (rule.contains("value_of")) {
    const json& value = flags.value(rule.at("value_of").get<std::string>());
    if (rule.size() == 1) return value;
    const std::string word = value.get<std::string>();
    if (!rule.contains(word)) refuse(where, "no rule for the flag's value " + word, "one rule per value");
    return resolved(rule.at(word), profile, flags, where);
  }
  if (rule.contains(profile)) return resolved(rule.at(profile), profile, flags, where);
  if (!rule.contains("else")) refuse(where, "no rule for profile " + profile, "the profile's name or \"else\"");
  return resolved(rule.at("else"), profile, flags, where);
}

std::string format_word(const json& value, const std::string& where) {
  const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
  const auto named = [&](const Format* format) { return format->name == word; };
  if (word != "none" && word != "activation" && std::none_of(formats().begin(), formats().end(), named))
    refuse(where, word, "none, activation or the name of a format");
  return word;
}

SumTree tree_of(const std::string& text, const std::string& where) {
  const std::string blocks = "blocks of ";
  if (text == "any") return {};
  if (text == "pairwise") return {SumTree::Kind::kPairwise, 0};
  if (text.rfind(blocks, 0) == 0) {
    const SumTree tree{SumTree::Kind::kBlocks, std::atoll(text.c_str() + blocks.size())};
    if (tree.block > 0 && tree.text() == text) return tree;
  }
  refuse(where, text, "any, pairwise or blocks of N");
}

json read_contracts() {
  std::ifstream stream(kFile);
  if (!stream) throw InputError(kFile.string(), "cannot be read", "the contracts of all ops");
  json file = json::parse(stream, nullptr, false);
  check_contracts(file);
  return file.at("ops");
}

const json& contracts() {
  static const json ops = read_contracts();
  return ops;
}

OpContract contract_of(const OpSpec& op, const json& entry, const std::string& profile, const Flags& flags) {
  OpContract contract;
  contract.op = op.name;
  contract.source = entry.value("source", op.source);
  for (std::size_t i = 0; i < kRoundingPointCount; ++i) {
    if (kRoundingPoints[i].op() != op.name) continue;
    const std::string where(kRoundingPoints[i].name);
    const json& rule = entry.at("points").at(std::string(kRoundingPoints[i].value()));
    contract.points.push_back({i, format_word(resolved(rule, profile, flags, where), where)});
  }
  const json sums = entry.value("sums", json::array()), attributes = entry.value("attributes", json::object());
  for (const json& sum : sums) {
    const std::string where = op.name + " sum " + sum.at("name").get<std::string>();
    contract.sums.push_back({sum.at("name"), format_word(resolved(sum.at("format"), profile, flags, where), where),
                             tree_of(resolved(sum.at("tree"), profile, flags, where), where)});
  }
  for (const auto& [attribute, rule] : attributes.items()) {
    const bool known = std::any_of(op.attributes.begin(), op.attributes.end(),
                                   [&, name = attribute](const AttributeSpec& spec) { return spec.name == name; });
    if (!known) refuse(op.name, "attribute " + attribute, "the attributes of the op");
    contract.attributes[attribute] = resolved(rule, profile, flags, op.name + " " + attribute);
  }
  return contract;
}

}  // namespace

void check_contracts(const json& file) {
  if (!file.is_object() || file.value("assay_contracts", json()) != 1 || !file.value("ops", json()).is_object())
    throw InputError(kFile.string(), "no contracts", "JSON with \"assay_contracts\": 1 and \"ops\"");
  const json& ops = file.at("ops");
  for (const OpSpec& op : op_specs())
    if (!ops.contains(op.name)) refuse("ops", "no " + op.name, "every op of the catalogue");
  for (const auto& [name, entry] : ops.items()) {
    op_named(name);
    if (!entry.is_object()) refuse(name, entry.dump(), "an object");
    for (const auto& [part, content] : entry.items())
      if (part != "sums" && part != "points" && part != "attributes" && part != "source")
        refuse(name, "entry " + part, "sums, points, attributes and source");
    const json points = entry.value("points", json::object());
    for (const auto& [value, rule] : points.items()) {
      const std::string full = name + "/" + value;
      if (std::none_of(std::begin(kRoundingPoints), std::end(kRoundingPoints),
                       [&](const RoundingPoint& known) { return known.name == full; }))
        refuse(full, "no such rounding point", "the points of cases/rounding_points.h");
    }
  }
  for (const RoundingPoint& known : kRoundingPoints) {
    const std::string op(known.op()), value(known.value());
    if (!ops.contains(op) || !ops.at(op).value("points", json::object()).contains(value))
      refuse(std::string(known.name), "missing", "every rounding point has a rule");
  }
}

const std::vector<std::string>& contract_profiles() {
  static const std::vector<std::string> names = {"megatron", "hf", "serving"};
  return names;
}

Contract Contract::resolve(std::string_view profile, const Flags& flags, DType activation) {
  const std::string name(profile);
  const auto& known = contract_profiles();
  if (std::find(known.begin(), known.end(), name) == known.end())
    throw InputError("profile", name, "megatron, hf or serving");
  flags.check();
  Contract contract;
  contract.profile_ = name;
  contract.flags_ = flags;
  contract.activation_ = activation;
  for (const OpSpec& op : op_specs()) contract.ops_.push_back(contract_of(op, contracts().at(op.name), name, flags));
  return contract;
}

const OpContract& Contract::of(std::string_view op) const {
  const auto found = std::find_if(ops_.begin(), ops_.end(), [&](const OpContract& each) { return each.op == op; });
  ASSAY_CHECK(found != ops_.end());
  return *found;
}

}  // namespace assay
