#include "harness/sample.h"

#include <sys/mman.h>

#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "cases/error.h"
#include "harness/sample_companions.h"
#include "harness/sample_view.h"

namespace assay::harness {
namespace {

View output_view(const SampledCall& sampled, const Shape& shape) {
  return view_of(output_spec(sampled.call, sampled.output), shape, sampled.dims, sampled.selection);
}

/// A tensor that reads as zero: untouched anonymous pages take no memory.
Tensor blank(DType dtype, const Shape& shape) {
  const std::size_t size = static_cast<std::size_t>(element_count(shape)) * static_cast<std::size_t>(size_of(dtype));
  if (size == 0) return Tensor::zeros(dtype, shape);
  void* pages = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw EnvironmentError(fmt::format("no address space for {} bytes", size));
  const std::shared_ptr<const void> owner(pages, [size](void* p) { munmap(p, size); });
  return Tensor::view(dtype, shape, {static_cast<const std::byte*>(pages), size}, owner);
}

}  // namespace

OpCall shapes_of(const OpSpec& spec, const nlohmann::json& attributes, const Sources& sources, std::string path) {
  std::map<std::string, Tensor> blanks;
  for (const auto& [name, source] : sources) blanks[name] = blank(source->dtype(), source->shape());
  return make_call(spec, attributes, std::move(blanks), std::move(path));
}

SampledCall make_sampled_call(const OpCall& whole, const Sources& sources, const SamplePlan& plan) {
  check_op(whole, plan);
  SampledCall sampled{{}, plan.output, plan.seed, plan.whole, {}, whole.dims};
  const SliceRule* rule = plan.whole ? slice_rule(whole, plan.output) : &checked_rule(whole, plan);
  Companions companions;
  if (plan.whole) {
    // What the output does not depend on is still left out.
    if (rule != nullptr && rule->slices.empty()) sampled.selection = selection_of(whole, *rule, {});
  } else {
    sampled.selection = selection_of(whole, *rule, plan.indices);
    companions = add_companions(whole, sources, rule->companion, sampled.selection);
  }
  nlohmann::json attributes = whole.attributes;
  for (const auto& [name, value] : companions.attributes) attributes[name] = value;
  std::map<std::string, Tensor> inputs;
  for (const OperandSpec& input : whole.spec->inputs) {
    const auto held = whole.inputs.find(input.name);
    if (held == whole.inputs.end()) continue;
    if (const auto made = companions.operands.find(input.name); made != companions.operands.end()) {
      inputs[input.name] = made->second;
      continue;
    }
    const auto source = sources.find(input.name);
    if (source == sources.end() || source->second->shape() != held->second.shape())
      throw InputError("sample of " + plan.op + ": operand " + input.name,
                       source == sources.end() ? "no source" : "shape " + assay::to_string(source->second->shape()),
                       "a source of shape " + assay::to_string(held->second.shape()));
    const View view = view_of(input, held->second.shape(), whole.dims, sampled.selection);
    inputs[input.name] = source->second->gather(view.shape, view.picks);
  }
  sampled.call = make_call(*whole.spec, attributes, std::move(inputs), whole.path);
  sampled.call.rank = whole.rank;
  return sampled;
}

std::vector<std::int64_t> sampled_elements(const SampledCall& sampled, const Shape& whole_output) {
  const View view = output_view(sampled, whole_output);
  std::vector<std::int64_t> flat{0};
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    Places places(static_cast<std::size_t>(view.shape[axis]));
    std::iota(places.begin(), places.end(), 0);
    if (view.picks[axis]) places = *view.picks[axis];
    std::vector<std::int64_t> next;
    next.reserve(flat.size() * places.size());
    for (const std::int64_t prefix : flat)
      for (const std::int64_t place : places) next.push_back(prefix * view.shape[axis] + place);
    flat = std::move(next);
  }
  return flat;
}

Tensor gather_output(const Tensor& whole_output, const SampledCall& sampled) {
  const View view = output_view(sampled, whole_output.shape());
  return HeldSource(whole_output).gather(view.shape, view.picks);
}

Coverage coverage_of(const SampledCall& sampled, const Shape& whole_output) {
  Coverage coverage{1, element_count(whole_output), 1.0, sampled.seed};
  const View view = output_view(sampled, whole_output);
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis)
    coverage.chosen *= view.picks[axis] ? static_cast<std::int64_t>(view.picks[axis]->size()) : view.shape[axis];
  if (coverage.all > 0) coverage.fraction = static_cast<double>(coverage.chosen) / static_cast<double>(coverage.all);
  return coverage;
}

}  // namespace assay::harness
