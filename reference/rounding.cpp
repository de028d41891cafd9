#include "reference/rounding.h"

#include "cases/error.h"

namespace assay::reference {
namespace {

const Format& format_named(std::string_view name) {
  for (const Format* format : formats())
    if (format->name == name) return *format;
  throw InputError("contract: format", std::string(name), "none, activation or a format of `assay list formats`");
}

PointFormat point_format(const std::string& word, DType activation) {
  if (word == "none") return {};
  const bool lifted = activation == DType::kF64 && (word == "fp32" || word == "tf32");
  if (lifted || (word == "activation" && activation == DType::kF64)) return {0x1p-53, nullptr};
  const Format& format = word == "activation" ? *format_of(activation) : format_named(word);
  return {format.unit_roundoff, &format};
}

}  // namespace

RoundingModel recorded_rounding(DType activation) {
  if (activation == DType::kF64) return {};
  RoundingModel model;
  model.compute = fp32().unit_roundoff;
  model.compute_format = &fp32();
  model.activation = format_of(activation)->unit_roundoff;
  model.tiny = 0x1p-126;  // subnormals of f32 may be flushed
  auto table = std::make_shared<PointTable>();
  for (std::size_t i = 0; i < kRoundingPointCount; ++i) {
    const Unspecified what = kRoundingPoints[i].unspecified;
    if (what == Unspecified::kNone) continue;
    const Format* format = what == Unspecified::kActivation ? format_of(activation) : &fp32();
    table->points[i] = {format->unit_roundoff, format};
  }
  model.points = std::move(table);
  return model;
}

RoundingModel rounding_model(const Contract& contract) {
  RoundingModel model = recorded_rounding(contract.activation());
  auto table = std::make_shared<PointTable>();
  for (const OpContract& op : contract.ops()) {
    for (const PointRule& rule : op.points)
      table->points[rule.point] = point_format(rule.format, contract.activation());
    if (!op.sums.empty()) table->trees[op.op] = op.sums.front().tree;
  }
  model.points = std::move(table);
  return model;
}

RoundingModel before_store(const RoundingModel& model, std::string_view op, DType dtype) {
  if (!model.points || !is_real(dtype) || format_of(dtype) == nullptr) return model;
  auto table = std::make_shared<PointTable>(*model.points);
  for (std::size_t i = 0; i < kRoundingPointCount; ++i) {
    const std::string padded = " " + std::string(kRoundingPoints[i].stored_by) + " ";
    if (padded.find(" " + std::string(op) + " ") == std::string::npos) continue;
    if (table->points[i].format == format_of(dtype)) table->points[i] = {};
  }
  RoundingModel result = model;
  result.points = std::move(table);
  return result;
}

OpRounding::OpRounding(const std::string& op) : saved_(context().rounding.tree) {
  const RoundingModel& model = context().rounding;
  if (!model.points) return;
  const auto found = model.points->trees.find(op);
  context().rounding.tree = found == model.points->trees.end() ? SumTree{} : found->second;
}

}  // namespace assay::reference
