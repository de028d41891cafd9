#include "harness/sample_companions.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "cases/error.h"

namespace assay::harness {
namespace {

using Places = std::vector<std::int64_t>;

const OperandSource& source_of(const Sources& sources, const std::string& operand) {
  const auto found = sources.find(operand);
  if (found == sources.end()) throw InputError("sample: operand " + operand, "no source", "it decides what is sliced");
  return *found->second;
}

std::int64_t value_heads_per_key_head(const OpCall& whole) {
  const std::int64_t heads = whole.dims.at("H"), value_heads = whole.dims.at("Hv");
  if (heads == 0 || value_heads % heads != 0)
    throw InputError(whole.spec->name + ": v", fmt::format("{} value heads for {} key heads", value_heads, heads),
                     "a multiple of the key heads");
  return value_heads / heads;
}

void add_heads(const OpCall& whole, SliceCompanion companion, Selection& selection) {
  const std::int64_t group = value_heads_per_key_head(whole);
  if (companion == SliceCompanion::kValueHeads) {
    Places& heads = selection.elements["H"];
    for (const std::int64_t value_head : selection.elements.at("Hv")) heads.push_back(value_head / group);
  } else {
    Places& value_heads = selection.elements["Hv"];
    for (const std::int64_t head : selection.elements.at("H"))
      for (std::int64_t i = 0; i < group; ++i) value_heads.push_back(head * group + i);
  }
}

Tensor add_groups(const OpCall& whole, const Sources& sources, SliceCompanion companion, Selection& selection) {
  const OperandSource& source = source_of(sources, "offsets");
  const Places offsets = source.whole().integers();
  const std::int64_t rows = whole.dims.at("M");
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != rows ||
      !std::is_sorted(offsets.begin(), offsets.end()))
    throw InputError(whole.spec->name + ": offsets", "not group boundaries",
                     fmt::format("nondecreasing from 0 to {}", rows));
  Places counted{0};
  if (companion == SliceCompanion::kGroupedRows) {
    Places& experts = selection.elements["E"];
    for (const std::int64_t row : selection.elements.at("M")) {
      const auto next = std::upper_bound(offsets.begin(), offsets.end(), row);
      const std::int64_t expert = next - offsets.begin() - 1;
      if (experts.empty() || experts.back() != expert) {
        experts.push_back(expert);
        counted.push_back(counted.back());
      }
      ++counted.back();
    }
  } else {
    Places& kept = selection.elements["M"];
    for (const std::int64_t expert : selection.elements.at("E")) {
      const auto e = static_cast<std::size_t>(expert);
      for (std::int64_t row = offsets[e]; row < offsets[e + 1]; ++row) kept.push_back(row);
      counted.push_back(static_cast<std::int64_t>(kept.size()));
    }
  }
  return Tensor::from_integers(source.dtype(), {static_cast<std::int64_t>(counted.size())}, counted);
}

void add_counted_label(const OpCall& whole, const Sources& sources, Selection& selection) {
  const Places labels = source_of(sources, "labels").whole().integers();
  const auto ignored = whole.attributes.at("ignore_index").get<std::int64_t>();
  Places& rows = selection.elements.at("T");
  const auto counts = [&](std::int64_t row) { return labels.at(static_cast<std::size_t>(row)) != ignored; };
  if (std::any_of(rows.begin(), rows.end(), counts)) return;
  const auto first = std::find_if(labels.begin(), labels.end(), [&](std::int64_t label) { return label != ignored; });
  if (first == labels.end()) throw InputError("labels", "every label is ignored", "at least one token with a loss");
  rows.push_back(first - labels.begin());
  std::sort(rows.begin(), rows.end());
}

Tensor add_selected_rows(const OpCall& whole, const Sources& sources, Selection& selection) {
  const OperandSource& source = source_of(sources, "ids");
  const Places ids = source.gather({selection.elements.at("T")}).integers();
  Places rows = ids;
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  if (rows.front() < 0 || rows.back() >= whole.dims.at("V"))
    throw InputError(whole.spec->name + ": ids", fmt::format("{} to {}", rows.front(), rows.back()),
                     fmt::format("ids in [0, {})", whole.dims.at("V")));
  Places renumbered;
  for (const std::int64_t id : ids) renumbered.push_back(std::lower_bound(rows.begin(), rows.end(), id) - rows.begin());
  selection.elements["V"] = std::move(rows);
  return Tensor::from_integers(DType::kI64, {static_cast<std::int64_t>(ids.size())}, renumbered);
}

/// Rows that see a token, as indexer_loss divides by (megatron.md 3.6); at least 1.
std::int64_t seeing_rows(const OpCall& whole, const Sources& sources) {
  const std::int64_t rows = whole.dims.at("T"), width = whole.dims.at("S");
  if (whole.inputs.count("visible") == 0) return std::max<std::int64_t>(width > 0 ? rows : 0, 1);
  const Places visible = source_of(sources, "visible").whole().integers();
  std::int64_t seeing = 0;
  for (std::int64_t t = 0; t < rows; ++t) {
    const auto row = visible.begin() + t * width;
    if (std::any_of(row, row + width, [](std::int64_t seen) { return seen != 0; })) ++seeing;
  }
  return std::max<std::int64_t>(seeing, 1);
}

}  // namespace

Companions add_companions(const OpCall& whole, const Sources& sources, SliceCompanion companion, Selection& selection) {
  Companions companions;
  switch (companion) {
    case SliceCompanion::kNone:
      break;
    case SliceCompanion::kValueHeads:
    case SliceCompanion::kKeyHeads:
      add_heads(whole, companion, selection);
      break;
    case SliceCompanion::kGroupedRows:
    case SliceCompanion::kGroups:
      companions.operands["offsets"] = add_groups(whole, sources, companion, selection);
      break;
    case SliceCompanion::kSelectedRows:
      companions.operands["ids"] = add_selected_rows(whole, sources, selection);
      break;
    case SliceCompanion::kScaleBlocks:
      selection.elements["Nb"] = selection.blocks.at("N");
      break;
    case SliceCompanion::kCountedLabels:
      add_counted_label(whole, sources, selection);
      break;
    case SliceCompanion::kLossRows:
      if (whole.attributes.at("rows").is_null()) companions.attributes["rows"] = seeing_rows(whole, sources);
      break;
  }
  return companions;
}

bool counts_anew(SliceCompanion companion, const std::string& operand) {
  const bool grouped = companion == SliceCompanion::kGroupedRows || companion == SliceCompanion::kGroups;
  return (grouped && operand == "offsets") || (companion == SliceCompanion::kSelectedRows && operand == "ids");
}

void add_typical_companions(const OpCall& whole, SliceCompanion companion, Selection& selection) {
  if (companion == SliceCompanion::kValueHeads || companion == SliceCompanion::kKeyHeads)
    add_heads(whole, companion, selection);
  if (companion == SliceCompanion::kGroupedRows) selection.elements["E"] = {0};
  if (companion == SliceCompanion::kSelectedRows) selection.elements["V"] = {0};
  if (companion == SliceCompanion::kScaleBlocks) selection.elements["Nb"] = selection.blocks.at("N");
  if (companion == SliceCompanion::kGroups) {
    const std::int64_t rows = whole.dims.at("M"), experts = std::max<std::int64_t>(whole.dims.at("E"), 1);
    selection.elements["M"].resize(static_cast<std::size_t>((rows + experts - 1) / experts));
  }
}

}  // namespace assay::harness
