#include "harness/contract_table.h"

#include <fmt/format.h>

namespace assay::harness {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kNameWidth = 26, kColumnWidth = 18;

template <class Text>
std::string row(const char* kind, const std::string& name, const std::vector<Contract>& contracts, const Text& text,
                const std::string& meaning) {
  std::string line = fmt::format("  {:<9} {:<{}}", kind, name, kNameWidth);
  for (const Contract& contract : contracts) line += fmt::format(" {:<{}}", text(contract), kColumnWidth);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return meaning.empty() ? line + "\n" : fmt::format("{}  {}\n", line, meaning);
}

std::string block(const std::vector<Contract>& contracts, const OpSpec& op) {
  const OpContract& first = contracts.front().of(op.name);
  std::string text = fmt::format("{:<{}}", op.name, kNameWidth + 12);
  for (const Contract& contract : contracts) text += fmt::format(" {:<{}}", contract.profile(), kColumnWidth);
  text += fmt::format("  ({})\n", first.source);
  for (std::size_t i = 0; i < first.points.size(); ++i) {
    const RoundingPoint& point = kRoundingPoints[first.points[i].point];
    text += row(
        "rounds", std::string(point.value()), contracts,
        [&](const Contract& c) { return c.of(op.name).points[i].format; }, std::string(point.meaning));
  }
  for (std::size_t i = 0; i < first.sums.size(); ++i)
    text += row(
        "sums", first.sums[i].name, contracts,
        [&](const Contract& c) {
          const SumRule& sum = c.of(op.name).sums[i];
          return fmt::format("{}, {}", sum.format, sum.tree.text());
        },
        "");
  for (const auto& [name, value] : first.attributes.items())
    text += row(
        "attribute", name, contracts,
        [&, key = name](const Contract& c) { return c.of(op.name).attributes.at(key).dump(); }, "");
  if (first.points.empty() && first.sums.empty()) text += "  no sum, and nothing rounded on the way\n";
  return text;
}

Json to_json(const OpContract& op) {
  Json points = Json::object(), sums = Json::array();
  for (const PointRule& rule : op.points) points[std::string(kRoundingPoints[rule.point].value())] = rule.format;
  for (const SumRule& sum : op.sums)
    sums.push_back({{"name", sum.name}, {"format", sum.format}, {"tree", sum.tree.text()}});
  return {{"points", points}, {"sums", sums}, {"attributes", op.attributes}, {"source", op.source}};
}

}  // namespace

std::vector<Contract> contracts_of(const ContractOptions& options, DType activation) {
  std::vector<Contract> contracts;
  for (const std::string& profile : contract_profiles())
    if (options.profile.empty() || options.profile == profile)
      contracts.push_back(Contract::resolve(profile, flags_of(options), activation));
  return contracts;
}

std::string contract_table(const std::vector<Contract>& contracts, const std::vector<OpSpec>& ops) {
  std::string text;
  for (const OpSpec& op : ops) text += (text.empty() ? "" : "\n") + block(contracts, op);
  return text;
}

nlohmann::ordered_json contracts_json(const std::vector<Contract>& contracts, const std::vector<OpSpec>& ops) {
  Json json = Json::object();
  for (const Contract& contract : contracts) {
    Json entry = {{"flags", contract.flags().all()}, {"activation", name_of(contract.activation())}};
    for (const OpSpec& op : ops) entry["ops"][op.name] = to_json(contract.of(op.name));
    json[contract.profile()] = entry;
  }
  return json;
}

}  // namespace assay::harness
