#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "cases/error.h"
#include "cases/ops/dims.h"
#include "harness/sample.h"
#include "harness/sample_companions.h"
#include "harness/sample_view.h"

namespace assay::harness {
namespace {

double picked(const View& view) {
  double count = 1.0;
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis)
    count *=
        static_cast<double>(view.picks[axis] ? static_cast<std::int64_t>(view.picks[axis]->size()) : view.shape[axis]);
  return count;
}

/// Elements of operands and output of the call with one index per symbol. An output whose shape depends on values is
/// left out.
double work_of_part(const OpCall& whole, const SliceRule& rule, const std::string& output) {
  std::map<std::string, Places> first;
  for (const Slice& slice : rule.slices) first[slice.symbol] = {0};
  Selection one = selection_of(whole, rule, first);
  add_typical_companions(whole, rule.companion, one);
  for (const Slice& gathered : rule.gathered) {
    const std::int64_t read = DimensionWord(gathered.block).value(whole.dims).value();
    one.elements[gathered.symbol].resize(static_cast<std::size_t>(std::min(read, extent(whole, gathered.symbol))));
  }
  double work = 0.0;
  for (const OperandSpec& input : whole.spec->inputs) {
    if (counts_anew(rule.companion, input.name)) continue;
    if (const auto found = whole.inputs.find(input.name); found != whole.inputs.end())
      work += picked(view_of(input, found->second.shape(), whole.dims, one));
  }
  const OperandSpec& spec = output_spec(whole, output);
  if (const auto shape = output_shape(whole, spec)) work += picked(view_of(spec, *shape, whole.dims, one));
  return work;
}

/// `count` of [0, size), ascending.
Places stratified(std::int64_t size, std::int64_t count, std::uint64_t seed) {
  constexpr std::int64_t kTile = 64;  // its multiples hold those of 128
  std::vector<bool> chosen(static_cast<std::size_t>(size));
  std::int64_t left = std::min(size, count);
  std::uint64_t draws = 0;
  const auto choose = [&](std::int64_t index) {
    if (chosen[static_cast<std::size_t>(index)]) return;
    chosen[static_cast<std::size_t>(index)] = true;
    --left;
  };
  /// One of each of `strata` equal parts of `from`.
  const auto choose_from = [&](const Places& from, std::int64_t strata) {
    const auto n = static_cast<std::int64_t>(from.size());
    for (std::int64_t s = 0; s < strata; ++s) {
      const std::int64_t begin = n * s / strata, width = n * (s + 1) / strata - begin;
      const auto drawn = static_cast<std::int64_t>(random_bits(seed, draws++) % static_cast<std::uint64_t>(width));
      choose(from[static_cast<std::size_t>(begin + drawn)]);
    }
  };
  const auto unchosen = [&](const auto& wanted) {
    Places places;
    for (std::int64_t i = 0; i < size; ++i)
      if (!chosen[static_cast<std::size_t>(i)] && wanted(i)) places.push_back(i);
    return places;
  };
  if (left >= 2) {
    choose(0);
    choose(size - 1);
  }
  const Places edges = unchosen([](std::int64_t i) { return i >= kTile - 1 && (i + 1) % kTile <= 2; });
  choose_from(edges, std::min(left / 2 + left % 2, static_cast<std::int64_t>(edges.size())));
  choose_from(unchosen([](std::int64_t) { return true; }), left);
  Places places;
  for (std::int64_t i = 0; i < size; ++i)
    if (chosen[static_cast<std::size_t>(i)]) places.push_back(i);
  return places;
}

void set_fraction(SamplePlan& plan, const OpCall& whole, const SliceRule& rule) {
  const Selection selection = selection_of(whole, rule, plan.indices);
  plan.fraction = 1.0;
  for (const Slice& slice : rule.slices)
    plan.fraction *= static_cast<double>(selection.elements.at(slice.symbol).size()) /
                     static_cast<double>(extent(whole, slice.symbol));
}

/// The index of a symbol that a place of an axis belongs to, if the axis carries the symbol.
std::optional<std::int64_t> index_at(const OpCall& whole, const Slice& slice, const std::string& word,
                                     std::int64_t place) {
  if (word == kRows) return slice.symbol == kRows ? std::optional(place) : std::nullopt;
  if (DimensionWord(word).name() == slice.symbol) return place / block_size(whole, slice);
  if (slice.symbol == kRows) return std::nullopt;
  for (std::int64_t index = 0; index < index_count(whole, slice); ++index) {
    Selection one;
    one.elements[slice.symbol] = {index};
    if (!slice.block.empty()) one.blocks[slice.symbol] = {index};
    const auto places = sliced_axis(word, whole.dims, one);
    if (!places) return std::nullopt;
    if (std::find(places->begin(), places->end(), place) != places->end()) return index;
  }
  return std::nullopt;
}

}  // namespace

std::string to_string(const SamplePlan& plan) {
  std::string text = plan.op + " " + plan.output + ": ";
  if (plan.whole) return text + "whole";
  text += fmt::format("sample, seed {}, fraction {:.2g} of the outputs", plan.seed, plan.fraction);
  std::string separator = ": ";
  for (const auto& [symbol, indices] : plan.indices) {
    const auto size = plan.sizes.find(symbol);  // absent from a plan written by hand
    const std::string of = size == plan.sizes.end() ? "" : fmt::format(" of {}", size->second);
    text += fmt::format("{}{}{} {}", separator, indices.size(), of, symbol == kRows ? "rows" : symbol);
    separator = ", ";
  }
  return text;
}

SamplePlan plan_sample(const OpCall& whole, const std::string& output, const SampleBudget& budget) {
  if (!(budget.work > 0.0) || !std::isfinite(budget.work))
    throw InputError("sample budget", fmt::format("{}", budget.work), "a positive number of elements");
  const SliceRule* rule = slice_rule(whole, output);
  SamplePlan plan{whole.spec->name, output, budget.seed, true, {}, {}, 1.0};
  if (rule == nullptr || rule->slices.empty()) return plan;
  std::int64_t largest = 0;
  for (const Slice& slice : rule->slices) {
    const std::int64_t count = index_count(whole, slice);
    if (count == 0) return plan;
    plan.sizes[slice.symbol] = count;
    largest = std::max(largest, count);
  }
  const double part = work_of_part(whole, *rule, output);
  const auto fits = [&](std::int64_t each) {
    double work = part;
    for (const auto& [symbol, size] : plan.sizes) work *= static_cast<double>(std::min(size, each));
    return work <= budget.work;
  };
  if (fits(largest)) return plan;
  std::int64_t low = 1, high = largest;  // one index per symbol is the least, whatever it costs
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  if (largest == 1) return plan;
  plan.whole = false;
  std::uint64_t stream = 0;
  for (const auto& [symbol, size] : plan.sizes)
    plan.indices[symbol] = stratified(size, low, random_bits(budget.seed, stream++));
  set_fraction(plan, whole, *rule);
  return plan;
}

void add_largest(SamplePlan& plan, const OpCall& whole, const Tensor& candidate, std::int64_t count) {
  check_op(whole, plan);
  if (plan.whole) return;
  const SliceRule& rule = checked_rule(whole, plan);
  const View view =
      view_of(output_spec(whole, plan.output), candidate.shape(), whole.dims, selection_of(whole, rule, plan.indices));
  const auto size_of_element = [&](std::int64_t i) {
    const double value = std::abs(candidate.real(i));
    return std::isfinite(value) ? value : std::numeric_limits<double>::infinity();
  };
  std::vector<std::pair<double, std::int64_t>> largest;  // a heap, the smallest on top; of equals the first places
  const auto above = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  for (std::int64_t i = 0; i < candidate.size(); ++i) {
    largest.emplace_back(size_of_element(i), i);
    std::push_heap(largest.begin(), largest.end(), above);
    if (static_cast<std::int64_t>(largest.size()) <= count) continue;
    std::pop_heap(largest.begin(), largest.end(), above);
    largest.pop_back();
  }
  std::vector<std::string> words = dimension_words(output_spec(whole, plan.output).dims);
  if (!words.empty() && words.front() == kRows) words.erase(words.begin());
  words.insert(words.begin(), view.shape.size() - words.size(), kRows);
  for (const Slice& slice : rule.slices) {
    Places& indices = plan.indices.at(slice.symbol);
    for (const auto& entry : largest) {
      std::int64_t rest = entry.second;
      for (std::size_t axis = words.size(); axis-- > 0;) {
        const auto index = index_at(whole, slice, words[axis], rest % view.shape[axis]);
        if (index) indices.push_back(*index);
        rest /= view.shape[axis];
      }
    }
    std::sort(indices.begin(), indices.end());
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  }
  set_fraction(plan, whole, rule);
}

}  // namespace assay::harness
