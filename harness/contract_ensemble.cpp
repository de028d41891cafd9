#include "harness/contract_ensemble.h"

#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <boost/math/distributions/students_t.hpp>

#include "cases/error.h"
#include "harness/ensemble.h"
#include "harness/judge.h"
#include "reference/evaluate.h"
#include "reference/rounding.h"

namespace assay::harness {
namespace {

using reference::Array;
using reference::Ball;
using reference::Context;
using reference::ContextScope;
using reference::Results;
using reference::Sampled;

/// Members of the ensemble for the outputs of one dtype.
std::vector<Results<Sampled>> members_of(const OpCall& call, const Context& wanted, DType dtype) {
  Context executed = wanted;
  executed.rounding = reference::before_store(wanted.rounding, call.spec->name, dtype);
  executed.rounding.execution = reference::Execution::kRandom;
  std::vector<Results<Sampled>> members;
  for (int run = 0; run < kEnsemble; ++run) {
    const ContextScope scope(member(executed, run));
    members.push_back(reference::evaluate<Sampled>(call));
  }
  return members;
}

/// The call without the attribute that chooses a form.
OpCall formless(OpCall call) {
  for (const AttributeSpec& attribute : call.spec->attributes)
    if (attribute.name == "chunk" && attribute.fallback && attribute.fallback->is_null())
      call.attributes["chunk"] = nullptr;
  return call;
}

std::vector<std::int64_t> row_index(std::int64_t row, const Shape& shape) {
  std::vector<std::int64_t> index;
  for (std::size_t axis = shape.size() - 1; axis-- > 0; row /= shape[axis])
    index.insert(index.begin(), row % shape[axis]);
  return index;
}

/// The row that used most of its limit; sums of squares per row.
RowLimit worst_row(const Tensor& observed, const Kept& expected, const std::vector<std::vector<double>>& samples,
                   const Shape& shape) {
  const std::int64_t width = shape.empty() ? 1 : shape.back();
  const std::int64_t rows = width == 0 ? 0 : observed.size() / width;
  const boost::math::students_t_distribution<double> student(static_cast<double>(samples.size()));
  const double t = quantile(complement(student, kDoubt / (2.0 * static_cast<double>(std::max<std::int64_t>(rows, 1)))));
  RowLimit worst;
  for (std::int64_t row = 0; row < rows; ++row) {
    double error = 0.0, stores = 0.0, spread = 0.0;
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      const double middle = expected.middle[static_cast<std::size_t>(i)];
      if (!std::isfinite(middle)) continue;
      error += std::pow(observed.real(i) - middle, 2);
      stores += std::pow(storage_error(observed.dtype(), middle), 2);
      for (const std::vector<double>& sample : samples)
        spread += std::pow(sample[static_cast<std::size_t>(i)] - middle, 2);
    }
    error = std::sqrt(error);
    const double members = static_cast<double>(samples.size());
    const double limit = t * std::sqrt(spread / members) / reference::sampling_magnification() + std::sqrt(stores);
    const double share = error == 0.0 ? 0.0 : error / limit;
    if (row == 0 || !(share <= worst.share))
      worst = {shape.empty() ? std::vector<std::int64_t>() : row_index(row, shape), error, limit, share};
  }
  return worst;
}

EnsembleJudgement judge(const ObservedOutput& output, const Array<Ball>& truth,
                        const std::vector<Results<Sampled>>& members) {
  EnsembleJudgement result;
  if (truth.shape != output.tensor.shape()) {
    result.check.verdict = Verdict::kFail;
    result.check.reason = fmt::format("recorded shape {}, the op gives {}", to_string(output.tensor.shape()),
                                      to_string(truth.shape));
    return result;
  }
  const Kept expected = kept(truth);
  std::vector<std::vector<double>> samples;
  std::vector<double> deviations;
  for (const Results<Sampled>& run : members) {
    std::vector<double>& sample = samples.emplace_back();
    for (const Sampled& v : std::get<Array<Sampled>>(run.at(output.output)).data) sample.push_back(v.v);
    deviations.push_back(norm_of_difference(expected.middle, sample));
  }
  result.check = judge_norm(output.tensor, expected, deviations);
  result.check.spread = result.check.share;
  result.worst_row = worst_row(output.tensor, expected, samples, truth.shape);
  const RowLimit& row = result.worst_row;
  if (!(row.share <= 1.0)) {
    if (!result.check.reason.empty()) result.check.reason += "; ";
    result.check.reason += fmt::format("row [{}] deviates by {:.3g}, the ensemble allows {:.3g}",
                                       fmt::join(row.row, ", "), row.error, row.limit);
    if (result.check.verdict != Verdict::kFail) result.check.over_limit = output.tensor.shape().back();
    result.check.verdict = Verdict::kFail;
  }
  return result;
}

}  // namespace

std::vector<EnsembleJudgement> judge_by_ensemble(const OpCall& call, const std::vector<ObservedOutput>& outputs,
                                                 const reference::RoundingModel& model, const JudgeSettings& settings) {
  ASSAY_CHECK(model.points != nullptr);
  Context wanted;
  wanted.bits = settings.bits;
  wanted.rounding = model;
  Results<Ball> truth;
  {
    const ContextScope scope(wanted);
    truth = reference::evaluate_certain(formless(call));
  }
  std::map<DType, std::vector<Results<Sampled>>> members;
  std::vector<EnsembleJudgement> judgements;
  for (const ObservedOutput& output : outputs) {
    const DType dtype = output.tensor.dtype();
    if (members.count(dtype) == 0) members[dtype] = members_of(call, wanted, dtype);
    const ContextScope scope(wanted);
    judgements.push_back(judge(output, std::get<Array<Ball>>(truth.at(output.output)), members.at(dtype)));
    judgements.back().check.recorded = output.recorded;
  }
  return judgements;
}

}  // namespace assay::harness
