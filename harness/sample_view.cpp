#include "harness/sample_view.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "cases/error.h"
#include "cases/ops/dims.h"

namespace assay::harness {
namespace {

/// Number of rows that the leading dimensions of a call make.
std::int64_t leading_rows(const OpCall& call) {
  for (const OperandSpec& input : call.spec->inputs) {
    const std::vector<std::string> words = dimension_words(input.dims);
    if (words.empty() || words.front() != kRows || call.inputs.count(input.name) == 0) continue;
    const Shape& shape = call.inputs.at(input.name).shape();
    return element_count(Shape(shape.begin(), shape.end() - std::ptrdiff_t(words.size() - 1)));
  }
  ASSAY_CHECK(false);  // rules name "..." only where an operand has it
  return 0;
}

}  // namespace

const OperandSpec& output_spec(const OpCall& call, const std::string& name) {
  const auto& outputs = call.spec->outputs;
  const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const auto& spec) { return spec.name == name; });
  ASSAY_CHECK(found != outputs.end());  // slice_rule refuses other names
  return *found;
}

std::int64_t extent(const OpCall& call, const std::string& symbol) {
  return symbol == kRows ? leading_rows(call) : call.dims.at(symbol);
}

std::int64_t block_size(const OpCall& call, const Slice& slice) {
  if (slice.block.empty()) return 1;
  std::string symbol = slice.block.substr(0, slice.block.find('|'));
  if (call.dims.count(symbol) == 0) symbol = slice.block.substr(slice.block.find('|') + 1);
  const std::int64_t size = call.dims.at(symbol);
  if (size < 1) throw InputError(call.spec->name + ": " + symbol, std::to_string(size), "at least 1");
  return size;
}

std::int64_t index_count(const OpCall& call, const Slice& slice) {
  const std::int64_t block = block_size(call, slice), size = extent(call, slice.symbol);
  return size / block + (size % block != 0 ? 1 : 0);
}

Selection selection_of(const OpCall& call, const SliceRule& rule, const std::map<std::string, Places>& indices) {
  Selection selection;
  for (const Slice& slice : rule.slices) {
    const Places& chosen = indices.at(slice.symbol);
    Places& elements = selection.elements[slice.symbol];
    if (slice.block.empty()) {
      elements = chosen;
      continue;
    }
    const std::int64_t block = block_size(call, slice), size = extent(call, slice.symbol);
    for (const std::int64_t index : chosen)
      for (std::int64_t i = index * block; i < std::min(size, (index + 1) * block); ++i) elements.push_back(i);
    selection.blocks[slice.symbol] = chosen;
  }
  for (const std::string& symbol : rule.unused)
    if (extent(call, symbol) > 0) selection.elements[symbol] = {0};
  return selection;
}

View view_of(const OperandSpec& operand, const Shape& shape, const Dims& dims, const Selection& selection) {
  std::vector<std::string> words = dimension_words(operand.dims);
  View view;
  std::size_t leading = 0;
  if (!words.empty() && words.front() == kRows) {
    words.erase(words.begin());
    if (shape.size() < words.size())
      throw InputError(operand.name, "shape " + assay::to_string(shape), "[" + operand.dims + "] is needed");
    leading = shape.size() - words.size();
    const Shape rows(shape.begin(), shape.begin() + std::ptrdiff_t(leading));
    if (const auto chosen = selection.elements.find(kRows); chosen != selection.elements.end()) {
      view = {{element_count(rows)}, {chosen->second}};
    } else {
      view = {rows, AxisPicks(leading)};
    }
  }
  if (shape.size() != leading + words.size())
    throw InputError(operand.name, "shape " + assay::to_string(shape), "[" + operand.dims + "] is needed");
  for (std::size_t i = 0; i < words.size(); ++i) {
    view.shape.push_back(shape[leading + i]);
    view.picks.push_back(sliced_axis(words[i], dims, selection));
  }
  return view;
}

const SliceRule& checked_rule(const OpCall& whole, const SamplePlan& plan) {
  const std::string where = "sample of " + plan.op + " " + plan.output;
  const SliceRule* rule = slice_rule(whole, plan.output);
  if (rule == nullptr) throw InputError(where, "a part", "this output is judged whole");
  for (const auto& [symbol, indices] : plan.indices)
    if (std::none_of(rule->slices.begin(), rule->slices.end(), [&](const Slice& s) { return s.symbol == symbol; }))
      throw InputError(where, "indices of " + symbol, "the output cannot be sliced along it");
  for (const Slice& slice : rule->slices) {
    const auto found = plan.indices.find(slice.symbol);
    if (found == plan.indices.end() || found->second.empty())
      throw InputError(where, "no indices of " + slice.symbol, "at least one");
    const Places& indices = found->second;
    const std::int64_t count = index_count(whole, slice);
    if (std::adjacent_find(indices.begin(), indices.end(), std::greater_equal<>()) != indices.end())
      throw InputError(where, "indices of " + slice.symbol + " that do not ascend", "each index once, ascending");
    if (indices.front() < 0 || indices.back() >= count)
      throw InputError(where, fmt::format("indices {} to {} of {}", indices.front(), indices.back(), slice.symbol),
                       fmt::format("0 to {}", count - 1));
  }
  return *rule;
}

void check_op(const OpCall& whole, const SamplePlan& plan) {
  if (plan.op != whole.spec->name)
    throw InputError("sample of " + whole.spec->name, "a plan of " + plan.op, "a plan of the same op");
}

}  // namespace assay::harness
