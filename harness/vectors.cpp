#include "harness/vectors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include "cases/error.h"
#include "cases/formats.h"
#include "harness/ensemble.h"
#include "harness/glob.h"
#include "harness/judge.h"
#include "harness/vector_map.h"
#include "reference/evaluate.h"

namespace assay::harness {
namespace {

using reference::Array;
using reference::Ball;
using reference::Bound;
using reference::Context;
using reference::ContextScope;
using reference::Index;
using reference::Results;

/// The rounding model that a case's recorded dtypes imply: sums in F32, activations in the coarsest dtype of inputs and
/// outputs.
reference::RoundingModel rounding_of(const VectorCall& call) {
  double coarsest = fp32().unit_roundoff;
  const auto look = [&](const Tensor& tensor) {
    if (tensor.dtype() == DType::kBF16 || tensor.dtype() == DType::kF16)
      coarsest = std::max(coarsest, format_of(tensor.dtype())->unit_roundoff);
  };
  for (const auto& [name, tensor] : call.call.inputs) look(tensor);
  for (const VectorOutput& output : call.outputs) look(output.tensor);
  reference::RoundingModel model;
  model.compute = fp32().unit_roundoff;
  model.activation = coarsest;
  model.tiny = 0x1p-126;  // subnormals of f32 may be flushed
  return model;
}

Check judge_index(const Tensor& observed, const Index& expected) {
  Check check;
  check.elements = observed.size();
  for (std::int64_t i = 0; i < observed.size(); ++i) {
    const auto wanted = static_cast<double>(expected[i]);
    const double seen = observed.real(i);
    if (is_real(observed.dtype()) ? seen == wanted : observed.integer(i) == expected[i]) continue;
    if (check.over_limit++ == 0) {
      check.error = std::abs(seen - wanted);
      check.reason = fmt::format("element {}: {}, expected {}", i, seen, expected[i]);
    }
  }
  check.share = check.over_limit > 0 ? std::numeric_limits<double>::infinity() : 0.0;
  check.verdict = check.over_limit > 0 ? Verdict::kFail : Verdict::kPass;
  return check;
}

Check size_mismatch(const VectorOutput& output, const Shape& expected) {
  Check check;
  check.verdict = Verdict::kFail;
  check.reason =
      fmt::format("recorded shape {}, the op gives {}", to_string(output.tensor.shape()), to_string(expected));
  return check;
}

/// The choice of a select_tokens call, as token ids or as pools, from its results and inputs.
reference::Decision<Ball> decision_of(const OpCall& call, const Results<Ball>& truth, const std::string& output) {
  reference::Decision<Ball> decision;
  decision.chosen = std::get<Index>(truth.at(output));
  const Array<Ball>& margin = std::get<Array<Ball>>(truth.at("margin"));
  for (const Ball& m : margin.data) decision.margin.push_back(reference::midpoint(m));
  const Index& tied = std::get<Index>(truth.at("tied"));
  decision.tied.resize(decision.margin.size());
  for (std::int64_t t = 0; t < tied.dim(0); ++t)
    for (std::int64_t p = 0; p < tied.dim(1); ++p)
      if (tied.at(t, p) != 0) decision.tied[static_cast<std::size_t>(t)].push_back(p);
  decision.scores = reference::load<Ball>(call.inputs.at("scores"));
  if (output == "pools") return decision;
  decision.first_token = reference::load_index(call.inputs.at("first_token"));
  decision.kpool = call.attributes.at("kpool");
  decision.visible_start = reference::load_index(call.inputs.at("visible_start"));
  decision.visible_end = reference::load_index(call.inputs.at("visible_end"));
  return decision;
}

/// For an output whose propagated limits say nothing (a saturated Sinkhorn, say).
Check judge_by_ensemble(const VectorCall& call, const VectorOutput& output, const Kept& expected) {
  std::vector<double> deviations;
  for (int run = 0; run < kEnsemble; ++run) {
    const ContextScope scope(member(reference::context(), run));
    std::vector<double> sample;
    const Results<reference::Sampled> results = reference::evaluate<reference::Sampled>(call.call);
    for (const reference::Sampled& v : std::get<Array<reference::Sampled>>(results.at(output.output)).data)
      sample.push_back(v.v);
    deviations.push_back(norm_of_difference(expected.middle, sample));
  }
  Check check = judge_norm(output.tensor, expected, deviations);
  if (check.verdict == Verdict::kPass) check.reason = "limit by ensemble: propagated worst cases say nothing here";
  return check;
}

Check judge_output(const VectorCall& call, const VectorOutput& output, const Results<Ball>& truth,
                   const Results<Bound>& bounds) {
  if (call.is_choice) {
    const reference::Decision<Ball> decision = decision_of(call.call, truth, output.output);
    if (decision.chosen.dim(0) == 0 || output.tensor.size() % decision.chosen.dim(0) != 0)
      return size_mismatch(output, decision.chosen.shape);
    if (is_real(output.tensor.dtype()))
      throw InputError("tensor " + output.recorded, std::string(name_of(output.tensor.dtype())), "integers are needed");
    Check check = judge_choice<Ball>(output.tensor, decision, {}, nullptr);
    // A vector that selects everything is a legal case: its ids are compared all the same.
    if (check.verdict == Verdict::kMistrusted) check.verdict = Verdict::kPass;
    return check;
  }
  const auto& value = truth.at(output.output);
  if (const Index* index = std::get_if<Index>(&value)) {
    if (index->size() != output.tensor.size()) return size_mismatch(output, index->shape);
    return judge_index(output.tensor, *index);
  }
  const Array<Ball>& values = std::get<Array<Ball>>(value);
  if (values.size() != output.tensor.size()) return size_mismatch(output, values.shape);
  std::vector<double> limits;
  for (const Bound& bound : std::get<Array<Bound>>(bounds.at(output.output)).data) limits.push_back(bound.e);
  const Kept expected = kept(values);
  Check check = judge_values(output.tensor, expected.truth, limits);
  if (check.verdict != Verdict::kMistrusted) return check;
  // A tensor of zeros and infinities, or without elements (no complete pool), is a legal case of a single function; so
  // is one of values that an implementation may flush: zeros are a right answer there.
  const double tiny = reference::context().rounding.tiny;
  const bool zeros = std::all_of(expected.truth.values.begin(), expected.truth.values.end(), [tiny](const Ball& ball) {
    const double middle = reference::midpoint(ball);
    return std::isinf(middle) || std::abs(middle) + reference::radius(ball) <= tiny;
  });
  if (!zeros) return judge_by_ensemble(call, output, expected);
  if (norm(expected.middle) > 0.0) check.reason = "zeros are right: every value is below the normal numbers of f32";
  check.verdict = Verdict::kPass;
  return check;
}

/// Bits of the second evaluation, by their factor: enough for a truth of 2^-140 between terms of order 1.
constexpr int kFiner = 4;

std::vector<Check> judge_call(const VectorCall& call, const VerifySettings& settings) {
  Context wanted;
  wanted.bits = settings.bits;
  wanted.rounding = rounding_of(call);
  const ContextScope scope(wanted);
  const Results<Ball> truth = reference::evaluate_certain(call.call);
  const Results<Bound> bounds = reference::evaluate<Bound>(call.call);
  std::vector<Check> checks;
  for (const VectorOutput& output : call.outputs) {
    Check check = judge_output(call, output, truth, bounds);
    if (check.verdict == Verdict::kMistrusted) {  // the truth may have drowned in the cancellation of its terms
      wanted.bits *= kFiner;
      const ContextScope finer(wanted);
      check = judge_output(call, output, reference::evaluate_certain(call.call), bounds);
      wanted.bits /= kFiner;
    }
    if (!call.report.empty()) {
      check.verdict = Verdict::kSkipped;
      check.reason = fmt::format("distance to the truth {:.3g} (relative norm), not judged: {}", check.relative_error,
                                 call.report);
    }
    check.stage = output.recorded;
    check.recorded = output.recorded;
    check.scope = "vector";
    checks.push_back(std::move(check));
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
