#include "harness/candidate.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "cases/error.h"
#include "reference/evaluate.h"
#include "reference/round_once.h"
#include "reference/rounding.h"

namespace assay::harness {
namespace {

using reference::Array;
using reference::Ball;
using reference::Context;
using reference::ContextScope;
using reference::Index;
using reference::Results;
using reference::Sampled;

bool holds_exactly(DType dtype, const std::vector<double>& values) {
  const Format* format = format_of(dtype);
  return format == nullptr || std::all_of(values.begin(), values.end(), [format](double value) {
           return value != value || rounded(*format, value) == value;
         });
}

Tensor stored(const Shape& shape, const std::vector<double>& values, DType activation) {
  const DType widest = activation == DType::kF64 ? DType::kF64 : DType::kF32;
  return Tensor::from_reals(holds_exactly(activation, values) ? activation : widest, shape, values);
}

double final_value(const Sampled& x, const Format*) { return x.v; }

/// The value of a ball in the widest output format, rounded once if it is not there yet.
double final_value(const Ball& x, const Format* format) {
  if (format == nullptr) return reference::midpoint(x);
  return reference::round_once(*format, x, Overflow::kSpecial);
}

template <class T>
Outputs to_tensors(const Results<T>& results, DType activation) {
  const Format* widest = activation == DType::kF64 ? nullptr : &fp32();
  Outputs outputs;
  for (const auto& [name, value] : results) {
    if (const Index* index = std::get_if<Index>(&value)) {
      outputs[name] = Tensor::from_integers(DType::kI64, index->shape, index->data);
      continue;
    }
    const Array<T>& array = std::get<Array<T>>(value);
    std::vector<double> values;
    values.reserve(array.data.size());
    for (const T& x : array.data) values.push_back(final_value(x, widest));
    outputs[name] = stored(array.shape, values, activation);
  }
  return outputs;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::ranges::equal(a.bytes(), b.bytes());
}

/// The first element whose bytes differ.
std::int64_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b, int element_size) {
  const auto place = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  return place / element_size;
}

Check hygiene(const std::string& what, std::int64_t elements, const std::string& fault) {
  Check check;
  check.stage = check.recorded = what;
  check.scope = "hygiene";
  check.elements = elements;
  check.over_limit = fault.empty() ? 0 : 1;
  check.verdict = fault.empty() ? Verdict::kPass : Verdict::kFail;
  check.reason = fault;
  return check;
}

std::map<std::string, std::vector<std::byte>> bytes_of(const std::map<std::string, Tensor>& tensors) {
  std::map<std::string, std::vector<std::byte>> bytes;
  for (const auto& [name, tensor] : tensors) bytes[name].assign(tensor.bytes().begin(), tensor.bytes().end());
  return bytes;
}

std::string changed_input(const OpCall& call, const std::map<std::string, std::vector<std::byte>>& before) {
  for (const auto& [name, tensor] : call.inputs)
    if (!std::ranges::equal(tensor.bytes(), before.at(name)))
      return fmt::format("the candidate changed its input {}: element {}", name,
                         first_difference(tensor.bytes(), before.at(name), size_of(tensor.dtype())));
  return {};
}

std::string wrong_shape(const OpCall& call, const Outputs& outputs) {
  for (const OperandSpec& output : call.spec->outputs) {
    const auto found = outputs.find(output.name);
    if (found == outputs.end()) {
      if (!output.optional) return "no output " + output.name;
      continue;
    }
    const std::optional<Shape> declared = output_shape(call, output);
    if (declared && *declared != found->second.shape())
      return fmt::format("output {} has shape {}, declared is {}", output.name, to_string(found->second.shape()),
                         to_string(*declared));
  }
  return {};
}

std::string unequal(const Outputs& first, const Outputs& again, int run) {
  for (const auto& [name, tensor] : first) {
    const auto found = again.find(name);
    if (found == again.end()) return fmt::format("run {} has no output {}", run, name);
    if (same_bits(tensor, found->second)) continue;
    if (tensor.shape() != found->second.shape() || tensor.dtype() != found->second.dtype())
      return fmt::format("run {} gives {} another shape or dtype", run, name);
    const std::int64_t at = first_difference(tensor.bytes(), found->second.bytes(), size_of(tensor.dtype()));
    return fmt::format("run {} gives other bits than run 1: {} element {}, {:.17g} ({:a}) and {:.17g} ({:a})", run,
                       name, at, tensor.real(at), tensor.real(at), found->second.real(at), found->second.real(at));
  }
  return {};
}

}  // namespace

Candidate contract_run(const Contract& contract, std::uint64_t seed) {
  Context wanted;
  wanted.rounding = reference::rounding_model(contract);
  wanted.rounding.execution = reference::Execution::kNearest;
  wanted.stream = seed;
  const DType activation = contract.activation();
  return [wanted, activation](const OpCall& call, unsigned char) {
    const ContextScope scope(wanted);
    return to_tensors(reference::evaluate<Sampled>(call), activation);
  };
}

Outputs execute_contract(const OpCall& call, const Contract& contract) {
  Context wanted;
  wanted.rounding = reference::rounding_model(contract);
  wanted.execute = true;
  const ContextScope scope(wanted);
  return to_tensors(reference::evaluate_certain(call), contract.activation());
}

HygienicRun run_hygienically(const Candidate& candidate, const OpCall& call, int repeats) {
  ASSAY_CHECK(repeats >= 2);
  const auto before = bytes_of(call.inputs);
  constexpr unsigned char kPoisons[] = {0xFF, 0x00, 0x7F, 0xA5};  // NaN, zero, large or NaN, a small negative number
  HygienicRun run;
  std::string changed, different;
  for (int i = 0; i < repeats; ++i) {
    Outputs outputs = candidate(call, kPoisons[static_cast<std::size_t>(i) % std::size(kPoisons)]);
    if (changed.empty()) changed = changed_input(call, before);
    if (i == 0) {
      run.outputs = std::move(outputs);
    } else if (different.empty()) {
      different = unequal(run.outputs, outputs, i + 1);
    }
  }
  std::int64_t inputs = 0, written = 0;
  for (const auto& [name, tensor] : call.inputs) inputs += tensor.size();
  for (const auto& [name, tensor] : run.outputs) written += tensor.size();
  run.checks.push_back(hygiene("inputs unchanged", inputs, changed));
  run.checks.push_back(hygiene("shapes", written, wrong_shape(call, run.outputs)));
  run.checks.push_back(hygiene("repeatable", written, different));
  return run;
}

}  // namespace assay::harness
