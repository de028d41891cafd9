#include "harness/prove.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include <fmt/format.h>

#include "cases/error.h"
#include "harness/glob.h"
#include "harness/json_tensor.h"
#include "reference/evaluate.h"

namespace assay::harness {
namespace {

using nlohmann::json;
using reference::Array;
using reference::Context;
using reference::ContextScope;
using reference::Index;
using reference::Real;
using reference::Results;

constexpr std::int64_t kMostElements = 1000000;  ///< of an operand: each costs two evaluations

/// Seeded numbers, the same on every platform: sums of twelve uniform parts, nearly normal, with 24 bits.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : random_(seed) {}
  double next() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random_() >> 40) * 0x1p-24;
    return static_cast<double>(static_cast<float>(sum));
  }
  double sign() { return (random_() >> 63) != 0 ? 1.0 : -1.0; }

 private:
  std::mt19937_64 random_;
};

Tensor bound_tensor(const json& binding, const OperandSpec& operand, const std::string& where, Numbers& numbers) {
  if (binding.contains("values")) {
    const DType dtype = operand.kind == OperandKind::kIndex ? DType::kI64 : DType::kF64;
    return tensor_from_json(where, binding.at("values"), dtype);
  }
  if (!binding.contains("shape")) throw InputError(where, binding.dump(), "\"shape\" or \"values\" is needed");
  const Shape shape = binding.at("shape").get<Shape>();
  double elements = 1.0;
  for (const std::int64_t size : shape) elements *= static_cast<double>(size);
  if (elements > static_cast<double>(kMostElements))
    throw InputError(where, "shape " + to_string(shape),
                     fmt::format("at most {} elements are differenced", kMostElements));
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  for (double& value : values) value = binding.value("offset", 0.0) + binding.value("scale", 1.0) * numbers.next();
  return Tensor::from_reals(DType::kF64, shape, values);
}

Context precise(int bits) {
  Context context = reference::context();
  context.bits = bits;
  return context;
}

/// sum over all real outputs of cotangent * output.
Real weighted(const Results<Real>& results, const std::map<std::string, Tensor>& cotangents) {
  Real sum(0);
  for (const auto& [name, cotangent] : cotangents) {
    const Array<Real>& values = std::get<Array<Real>>(results.at(name));
    for (std::int64_t i = 0; i < values.size(); ++i)
      if (cotangent.real(i) != 0.0) sum += values[i] * Real(cotangent.real(i));
  }
  return sum;
}

ProvedGradient judged(std::string name, const std::vector<Real>& gradient, const std::vector<Real>& difference,
                      const ProofSettings& settings) {
  ProvedGradient result{std::move(name), static_cast<std::int64_t>(gradient.size()), 0.0, false, ""};
  Real largest(0), worst(0);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    largest = std::max(largest, Real(abs(difference[i])));
    worst = std::max(worst, Real(abs(gradient[i] - difference[i])));
  }
  result.deviation = largest > 0 ? Real(worst / largest).convert_to<double>() : worst.convert_to<double>();
  result.passed = result.deviation <= settings.allowed;
  if (!result.passed)
    result.reason = fmt::format("deviates by {:.3g}, {:.3g} is allowed", result.deviation, settings.allowed);
  return result;
}

std::vector<ProvedGradient> prove_case(const OpSpec& forward, const OpSpec& backward, const json& given,
                                       const std::string& where, const ProofSettings& settings) {
  Numbers numbers(settings.seed);
  std::map<std::string, Tensor> inputs;
  for (const OperandSpec& operand : forward.inputs)
    if (given.at("inputs").contains(operand.name))
      inputs[operand.name] =
          bound_tensor(given.at("inputs").at(operand.name), operand, where + "." + operand.name, numbers);
  for (const auto& [name, binding] : given.at("inputs").items())
    if (!inputs.count(name))
      throw InputError(where + "." + name, "no input of " + forward.name, "assay list ops " + forward.name);
  const json attributes = given.value("attributes", json::object());
  const OpCall call = make_call(forward, attributes, inputs);

  // A cotangent for every real output that the backward knows and that is finite.
  std::map<std::string, Tensor> cotangents, backward_inputs = inputs;
  const Results<double> shapes = reference::evaluate<double>(call);
  for (const auto& [name, value] : shapes) {
    const auto* values = std::get_if<Array<double>>(&value);
    const auto takes = [&, cotangent = "d_" + name](const OperandSpec& operand) { return operand.name == cotangent; };
    if (values == nullptr || std::none_of(backward.inputs.begin(), backward.inputs.end(), takes)) continue;
    std::vector<double> cotangent;
    for (const double v : values->data) cotangent.push_back(std::isfinite(v) ? numbers.next() : 0.0);
    cotangents[name] = Tensor::from_reals(DType::kF64, values->shape, cotangent);
    backward_inputs["d_" + name] = cotangents[name];
  }
  std::map<std::string, Array<Real>> gradients;
  {
    const ContextScope scope(precise(settings.bits));
    const Results<Real> results = reference::evaluate<Real>(make_call(backward, attributes, backward_inputs));
    for (const auto& [name, value] : results)
      if (const auto* values = std::get_if<Array<Real>>(&value)) gradients[name] = *values;
  }
  std::vector<ProvedGradient> proved;
  const ContextScope scope(precise(settings.bits + kStepBits));
  const Real step = ldexp(Real(1), -kStepBits);
  for (const auto& [name, gradient] : gradients) {
    const std::string operand = name.substr(2);
    if (gradient.size() == 0 || !inputs.count(operand)) continue;
    std::vector<Real> differences;
    std::map<std::string, Array<Real>> moved{{operand, reference::load<Real>(inputs.at(operand))}};
    Array<Real>& x = moved.begin()->second;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      const Real kept = x[i];
      x[i] = kept + step;
      const Real above = weighted(reference::evaluate<Real>(call, moved), cotangents);
      x[i] = kept - step;
      const Real below = weighted(reference::evaluate<Real>(call, moved), cotangents);
      x[i] = kept;
      differences.push_back((above - below) / (2 * step));
    }
    proved.push_back(judged(where + ": " + name, gradient.data, differences, settings));
  }
  if (proved.empty()) throw InputError(where, "no gradient to prove", "the op's real inputs have none");
  return proved;
}

[[noreturn]] void nothing_proved(const ProofSettings& settings, const std::string& what) {
  throw InputError("--filter " + settings.filter, "fits no " + what, "`*` proves all");
}

}  // namespace

std::vector<ProvedGradient> prove_ops(const std::filesystem::path& file, const std::string& op,
                                      const ProofSettings& settings) {
  std::ifstream in(file);
  if (!in) throw InputError(file.string(), "cannot be read", "the inputs of the proofs are needed");
  std::vector<ProvedGradient> proved;
  try {
    const json root = json::parse(in);
    if (root.value("assay_proof", 0) != 1)
      throw InputError(file.string() + ": field assay_proof", "missing or not 1", "");
    const json& ops = root.at("ops");
    if (!ops.is_object()) throw InputError(file.string() + ": field ops", ops.dump(), "an object is needed");
    if (!op.empty() && !ops.contains(op)) {
      op_named(op + ".backward");  // says so if there is no such op
      throw InputError(file.string(), "no inputs for op " + op, "add them under \"ops\"");
    }
    for (const auto& [name, cases] : ops.items()) {
      if ((!op.empty() && name != op) || !glob_match(settings.filter, name)) continue;
      const OpSpec& backward = op_named(name + ".backward");
      if (!cases.is_array() || cases.empty())
        throw InputError(fmt::format("{}: field ops.{}", file.string(), name), cases.dump(),
                         "a list of cases is needed");
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const std::string where = fmt::format("{} case {}", name, i + 1);
        settings.progress(where);
        const std::vector<ProvedGradient> more = prove_case(op_named(name), backward, cases.at(i), where, settings);
        proved.insert(proved.end(), more.begin(), more.end());
      }
    }
  } catch (const json::exception& error) {
    throw InputError(file.string(), error.what(), "the form is described in harness/prove.h");
  }
  if (proved.empty()) nothing_proved(settings, "op of " + file.string());
  return proved;
}

std::vector<ProvedGradient> prove_model(const Checkpoint& checkpoint, const reference::ModelInputs& inputs,
                                        const reference::Conventions& conventions, const ProofSettings& settings) {
  reference::Observer<Real> nobody;
  reference::ModelGradients<Real> truth;
  {
    const ContextScope scope(precise(settings.bits));
    settings.progress("gradients");
    truth = reference::gradients<Real>(checkpoint, inputs, conventions, settings.losses, nobody);
  }
  std::vector<ProvedGradient> proved;
  const ContextScope scope(precise(settings.bits + kStepBits));
  const Real step = ldexp(Real(1), -kStepBits);
  for (const auto& [name, gradient] : truth.gradients) {
    if (!glob_match(settings.filter, name)) continue;
    settings.progress(name);
    Numbers numbers(settings.seed);
    const Array<Real> at = reference::load<Real>(checkpoint.file.at(name));
    std::vector<double> direction(at.data.size());
    Real along(0);
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] = numbers.sign();
      along += gradient.data[i] * Real(direction[i]);
    }
    const auto loss_at = [&](int side) {
      Array<Real> moved = at;
      for (std::size_t i = 0; i < direction.size(); ++i) moved.data[i] += step * Real(side * direction[i]);
      reference::Tape<Real> tape(false);
      tape.preset(name, std::move(moved));
      return reference::forward(checkpoint, inputs, conventions, settings.losses, nobody, tape).total->value[0];
    };
    const Real difference = (loss_at(1) - loss_at(-1)) / (2 * step);
    ProvedGradient one = judged(name, {along}, {difference}, settings);
    one.elements = gradient.size();
    proved.push_back(std::move(one));
  }
  if (proved.empty()) nothing_proved(settings, "parameter with a gradient");
  return proved;
}

}  // namespace assay::harness
