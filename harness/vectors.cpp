#include "harness/vectors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include "cases/error.h"
#include "harness/contract_ensemble.h"
#include "harness/glob.h"
#include "harness/op_judge.h"
#include "harness/vector_map.h"
#include "reference/rounding.h"

namespace assay::harness {
namespace {

/// The activation dtype that a case's recorded dtypes imply: the coarsest of inputs and outputs.
DType activation_of(const VectorCall& call) {
  DType coarsest = DType::kF32;
  const auto look = [&](const Tensor& tensor) {
    if (tensor.dtype() == DType::kBF16 || tensor.dtype() == DType::kF16) coarsest = tensor.dtype();
  };
  for (const auto& [name, tensor] : call.call.inputs) look(tensor);
  for (const ObservedOutput& output : call.outputs) look(output.tensor);
  return coarsest;
}

/// The contract of the settings, else the map's, else what the dtypes imply.
reference::RoundingModel rounding_of(const VectorCall& call, const VerifySettings& settings) {
  if (!settings.profile.empty()) return rounding_of(settings, activation_of(call));
  if (call.profile.empty()) return reference::recorded_rounding(activation_of(call));
  return reference::rounding_model(Contract::resolve(call.profile, call.flags, activation_of(call)));
}

/// A chunked form under a contract is judged by the ensemble that executes it, all others per element.
std::vector<Check> judged(const VectorCall& call, const reference::RoundingModel& model, const JudgeSettings& how) {
  const auto chunk = call.call.attributes.find("chunk");
  if (call.profile.empty() || chunk == call.call.attributes.end() || chunk->is_null())
    return judge_op(call.call, call.outputs, model, how);
  std::vector<Check> checks;
  for (EnsembleJudgement& judgement : judge_by_ensemble(call.call, call.outputs, model, how))
    checks.push_back(std::move(judgement.check));
  return checks;
}

std::vector<Check> judge_call(const VectorCall& call, const VerifySettings& settings) {
  std::vector<Check> checks = judged(call, rounding_of(call, settings), {.bits = settings.bits});
  for (Check& check : checks) {
    if (!call.report.empty()) {
      check.verdict = Verdict::kSkipped;
      check.reason = fmt::format("distance to the truth {:.3g} (relative norm), not judged: {}", check.relative_error,
                                 call.report);
    }
    check.stage = check.recorded;
    check.scope = "vector";
  }
  return checks;
}

/// What the op finds wrong with recorded inputs is told with the case's name.
std::vector<Check> judge_named(const std::filesystem::path& file, const VectorCall& call,
                               const VerifySettings& settings) {
  try {
    return judge_call(call, settings);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: case {}: {}", file.string(), call.call.path, error.what()));
  }
}

Check skipped(const std::string& name, const std::string& reason) {
  Check check;
  check.stage = check.recorded = name;
  check.scope = "vector";
  check.verdict = Verdict::kSkipped;
  check.reason = reason;
  return check;
}

}  // namespace

std::vector<Check> verify_vectors(const std::filesystem::path& file, const std::filesystem::path& map_file,
                                  const VerifySettings& settings) {
  const VectorMap map = VectorMap::read(map_file);
  std::vector<Check> checks;
  for (const VectorCase& vector_case : read_vector_cases(file)) {
    if (!glob_match(settings.filter, vector_case.name)) continue;
    settings.progress(vector_case.name);
    if (!map.knows(vector_case.group)) {
      checks.push_back(skipped(vector_case.name, "the map has no group " + vector_case.group));
      continue;
    }
    std::vector<std::string> unclaimed;
    for (const VectorCall& call : map.calls(vector_case, unclaimed)) {
      const std::vector<Check> judged = judge_named(file, call, settings);
      checks.insert(checks.end(), judged.begin(), judged.end());
    }
    for (const std::string& name : unclaimed)
      checks.push_back(skipped(vector_case.name + "." + name, "the map claims no such output"));
  }
  return checks;
}

std::vector<Check> by_group(const std::vector<Check>& checks) {
  struct Group {
    Check row;
    std::int64_t outputs = 0;
    std::set<std::string> cases;
  };
  std::map<std::string, Group> groups;
  std::vector<Check> others;
  for (const Check& check : checks) {
    if (check.verdict != Verdict::kPass) {
      others.push_back(check);
      continue;
    }
    const std::size_t dot = check.stage.find('.');
    Group& group = groups[check.stage.substr(0, dot)];
    Check& row = group.row;
    if (group.outputs == 0 || check.share > row.share) {
      row.error = check.error;
      row.limit = check.limit;
      row.share = check.share;
    }
    row.elements += check.elements;
    row.fixed += check.fixed;
    row.spread = std::max(row.spread, check.spread);
    row.relative_error = std::max(row.relative_error, check.relative_error);
    row.rows_tied += check.rows_tied;
    ++group.outputs;
    group.cases.insert(check.stage.substr(0, check.stage.find('.', dot + 1)));
  }
  std::vector<Check> rows;
  for (auto& [name, group] : groups) {
    group.row.stage = fmt::format("{}: {} outputs of {} cases", name, group.outputs, group.cases.size());
    group.row.scope = "vector";
    group.row.verdict = Verdict::kPass;
    if (group.row.rows_tied > 0) group.row.reason = fmt::format("{} rows by an exact tie", group.row.rows_tied);
    rows.push_back(group.row);
  }
  rows.insert(rows.end(), others.begin(), others.end());
  return rows;
}

}  // namespace assay::harness
