#include "harness/gradients.h"

#include <algorithm>
#include <fstream>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cases/error.h"
#include "harness/ensemble.h"
#include "harness/glob.h"
#include "harness/ties.h"
#include "harness/variables.h"
#include "reference/decide.h"

namespace assay::harness {
namespace {

using nlohmann::json;
using reference::Array;
using reference::Ball;
using reference::Context;
using reference::ContextScope;
using reference::Decision;
using reference::Index;
using reference::Real;
using reference::Sampled;

/// Follows the records where they resolve exact ties in another legal way, and keeps what was chosen.
template <class T>
class Resolving : public reference::Observer<T> {
 public:
  explicit Resolving(const Trace& trace) : trace_(trace) {}
  std::map<std::string, Index> choices;

  void decision(const std::string& stage, Decision<T>& decision) override {
    const auto found = trace_.stages.find(stage);
    Index adopted = decision.chosen;
    if (found != trace_.stages.end())
      for (const Recorded& recorded : found->second) judge_choice<T>(recorded.tensor, decision, {}, &adopted);
    decision.chosen = adopted;
    choices[stage] = adopted;
  }

 private:
  const Trace& trace_;
};

/// The gradients of a group one after the other; empty if none of them exists. A missing part is zero (an expert nobody
/// chose).
template <class T>
Array<T> assembled(const GradientNames::Group& group, const Checkpoint& checkpoint,
                   const std::map<std::string, Array<T>>& gradients) {
  Array<T> result;
  bool any = false;
  for (const std::string& name : group.tensors) {
    const auto found = gradients.find(name);
    any = any || found != gradients.end();
    const std::int64_t size = checkpoint.file.at(name).size();
    for (std::int64_t i = 0; i < size; ++i) result.data.push_back(found == gradients.end() ? T(0.0) : found->second[i]);
  }
  if (!any) return {};
  result.shape = {static_cast<std::int64_t>(result.data.size())};
  return result;
}

template <class T>
struct Expected {
  std::map<std::string, Kept> groups;  ///< by recorded name
  std::map<std::string, Index> choices;
};

template <class T>
Expected<T> expected_gradients(const Checkpoint& checkpoint, const Trace& trace, const GradientNames& names) {
  Resolving<T> observer(trace);
  const reference::ModelGradients<T> truth =
      reference::gradients<T>(checkpoint, trace.inputs, trace.conventions, reference::LossOptions{}, observer);
  Expected<T> result;
  for (const GradientNames::Group& group : names.groups) {
    const Array<T> gradient = assembled(group, checkpoint, truth.gradients);
    if (gradient.size() > 0) result.groups.emplace(group.recorded, kept(gradient));
  }
  result.choices = std::move(observer.choices);
  return result;
}

/// Says by name that a parameter has no gradient, and why.
Check without_gradient(const std::string& name) {
  Check check;
  check.stage = check.recorded = name;
  check.scope = "end to end";
  check.verdict = Verdict::kSkipped;
  check.reason = "no gradient: ";
  if (name.find(".indexer.") != std::string::npos) {
    check.reason += "the indexer only selects, and its loss coefficient is 0";
  } else if (name.find("e_score_correction_bias") != std::string::npos) {
    check.reason += "the bias only chooses experts";
  } else {
    check.reason += "the loss does not depend on it with these inputs";
  }
  return check;
}

/// Which parameters have a gradient, on both sides.
Check compare_sets(const std::set<std::string>& expected, const std::set<std::string>& recorded, std::int64_t all) {
  std::vector<std::string> only_expected, only_recorded;
  std::set_difference(expected.begin(), expected.end(), recorded.begin(), recorded.end(),
                      std::back_inserter(only_expected));
  std::set_difference(recorded.begin(), recorded.end(), expected.begin(), expected.end(),
                      std::back_inserter(only_recorded));
  Check check;
  check.stage = check.recorded = "parameters without gradient";
  check.scope = "end to end";
  check.is_set = true;
  check.elements = all;
  check.rows_unexplained = static_cast<std::int64_t>(only_expected.size() + only_recorded.size());
  check.rows_equal = all - check.rows_unexplained;
  check.over_limit = check.rows_unexplained;
  check.verdict = check.rows_unexplained == 0 ? Verdict::kPass : Verdict::kFail;
  check.reason =
      fmt::format("{} of {} parameters have no gradient", all - static_cast<std::int64_t>(expected.size()), all);
  if (!only_expected.empty()) check.reason += fmt::format("; not recorded: {}", fmt::join(only_expected, ", "));
  if (!only_recorded.empty()) check.reason += fmt::format("; recorded only: {}", fmt::join(only_recorded, ", "));
  return check;
}

template <class T>
std::vector<Check> verify_in(const Checkpoint& checkpoint, const Trace& trace, const TensorFile& file,
                             const GradientNames& names, VerifySettings& settings) {
  Context wanted = reference::context();
  wanted.rounding = rounding_of(settings, trace);
  const double goal = std::exp2(-2.0 / 3.0 * settings.bits);
  wanted.bits = settings.bits;
  Expected<T> expected;
  while (true) {
    const ContextScope scope(wanted);
    settings.progress(fmt::format("gradients at {} bits", wanted.bits));
    const bool last = wanted.bits >= wanted.cap_bits;
    try {
      expected = expected_gradients<T>(checkpoint, trace, names);
      const bool narrow = std::all_of(expected.groups.begin(), expected.groups.end(),
                                      [&](const auto& group) { return widest_radius(group.second) <= goal; });
      if (narrow || last) break;
    } catch (const reference::Undecided&) {
      if (last) wanted.ties_are_final = true;
    }
    if (!last) wanted.bits *= 2;
  }
  settings.bits = std::max(settings.bits, wanted.bits);

  std::map<std::string, std::vector<double>> deviations;
  for (int run = 0; run < kEnsemble; ++run) {
    settings.progress(fmt::format("gradients, ensemble {}/{}", run + 1, kEnsemble));
    const ContextScope scope(member(wanted, run));
    ForcedObserver<Sampled> observer(expected.choices);
    const auto sample =
        reference::gradients<Sampled>(checkpoint, trace.inputs, trace.conventions, reference::LossOptions{}, observer);
    for (const GradientNames::Group& group : names.groups) {
      const auto found = expected.groups.find(group.recorded);
      if (found == expected.groups.end()) continue;
      std::vector<double> values;
      for (const Sampled& v : assembled(group, checkpoint, sample.gradients).data) values.push_back(v.v);
      deviations[group.recorded].push_back(norm_of_difference(found->second.middle, values));
    }
  }

  std::vector<Check> checks;
  std::set<std::string> recorded_names, expected_names;
  const ContextScope scope(wanted);
  for (const GradientNames::Group& group : names.groups) {
    const auto found = expected.groups.find(group.recorded);
    if (found != expected.groups.end()) expected_names.insert(group.recorded);
    const std::string name = names.prefix + group.recorded;
    if (!file.has(name)) {
      if (found == expected.groups.end() && glob_match(settings.filter, name)) checks.push_back(without_gradient(name));
      continue;
    }
    recorded_names.insert(group.recorded);
    if (found == expected.groups.end() || !glob_match(settings.filter, name)) continue;
    const Tensor& tensor = file.at(name);
    if (tensor.size() != static_cast<std::int64_t>(found->second.middle.size())) {
      throw InputError(file.path().string() + ": tensor " + name, "shape " + to_string(tensor.shape()),
                       fmt::format("{} elements are needed", found->second.middle.size()));
    }
    Check check = judge_norm(tensor, found->second, deviations.at(group.recorded));
    check.stage = check.recorded = name;
    check.scope = "end to end";
    checks.push_back(std::move(check));
  }
  checks.push_back(compare_sets(expected_names, recorded_names, static_cast<std::int64_t>(names.groups.size())));
  return checks;
}

}  // namespace

GradientNames read_gradient_names(const std::filesystem::path& map_file, const Checkpoint& checkpoint) {
  std::ifstream in(map_file);
  if (!in) throw InputError(map_file.string(), "cannot be read", "a map of names (JSON) is needed");
  GradientNames names;
  std::map<std::string, std::string> claimed;  // checkpoint tensor -> recorded name
  try {
    const json root = json::parse(in);
    if (!root.contains("gradients")) {
      throw InputError(map_file.string() + ": field gradients", "missing", "gradients need their names");
    }
    const json& part = root.at("gradients");
    names.prefix = part.at("prefix").get<std::string>();
    for (const json& rule : part.at("rules")) {
      const bool per_expert = rule.value("per_expert", false);
      for (std::int64_t layer = 0; layer < checkpoint.config.num_hidden_layers; ++layer) {
        GradientNames::Group group;
        group.recorded = replaced(rule.at("recorded").get<std::string>(), "layer", layer);
        for (std::int64_t e = 0; e < (per_expert ? checkpoint.config.n_routed_experts : 1); ++e)
          for (const json& tensor : rule.at("tensors")) {
            const std::string name = replaced(replaced(tensor.get<std::string>(), "layer", layer), "expert", e);
            if (checkpoint.file.has(name)) group.tensors.push_back(name);
          }
        for (const std::string& name : group.tensors) claimed[name] = group.recorded;
        if (!group.tensors.empty()) names.groups.push_back(std::move(group));
      }
    }
  } catch (const json::exception& error) {
    throw InputError(map_file.string() + ": field gradients", error.what(),
                     "\"prefix\" and \"rules\" of \"recorded\", \"tensors\" and \"per_expert\" are allowed");
  }
  for (const auto& [name, tensor] : checkpoint.file.tensors())
    if (!claimed.count(name)) names.groups.push_back({name, {name}});
  return names;
}

std::vector<Check> verify_gradients(const Checkpoint& checkpoint, const Trace& trace,
                                    const std::filesystem::path& gradient_file, const GradientNames& names,
                                    VerifySettings& settings) {
  const TensorFile file = TensorFile::open(gradient_file);
  switch (settings.scalar) {
    case ScalarKind::kDouble:
      return verify_in<double>(checkpoint, trace, file, names, settings);
    case ScalarKind::kReal:
      return verify_in<Real>(checkpoint, trace, file, names, settings);
    case ScalarKind::kBall:
      return verify_in<Ball>(checkpoint, trace, file, names, settings);
  }
  ASSAY_CHECK(false);
}

}  // namespace assay::harness
