#include "harness/ensemble.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <boost/math/distributions/students_t.hpp>

namespace assay::harness {
namespace {

double root_mean_square(const std::vector<double>& deviations) {
  return norm(deviations) / std::sqrt(static_cast<double>(deviations.size()));
}

}  // namespace

reference::Context member(const reference::Context& wanted, int run) {
  reference::Context result = wanted;
  result.stream = kEnsembleSeed + static_cast<std::uint64_t>(run) * 0x9E3779B97F4A7C15ULL;
  return result;
}

double norm(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values)
    if (std::isfinite(v)) sum += v * v;
  return std::sqrt(sum);
}

bool says_nothing(const std::vector<double>& limits, const Kept& stage) {
  const reference::RoundingModel& model = reference::context().rounding;
  return !(norm(limits) <= std::sqrt(std::max(model.compute, model.activation)) * norm(stage.middle));
}

double norm_of_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::isfinite(a[i]) ? (a[i] - b[i]) * (a[i] - b[i]) : 0.0;
  return std::sqrt(sum);
}

double ensemble_factor(std::size_t members) {
  const boost::math::students_t_distribution<double> t(static_cast<double>(members));
  return quantile(t, 1.0 - kDoubt / 2.0) / reference::sampling_magnification();
}

double widest_radius(const Kept& stage) {
  double largest = 0.0, widest = 0.0;
  for (const reference::Ball& ball : stage.truth.values) {
    if (!std::isfinite(reference::midpoint(ball))) continue;
    largest = std::max(largest, std::abs(reference::midpoint(ball)));
    widest = std::max(widest, reference::radius(ball));
  }
  return widest == 0.0 ? 0.0 : widest / largest;
}

Check judge_norm(const Tensor& observed, const Kept& stage, const std::vector<double>& deviations) {
  const std::vector<double> none(stage.middle.size(), std::numeric_limits<double>::infinity());
  Check check = judge_values(observed, stage.truth, none);  // special values, sizes, certificate, relative error
  if (check.verdict == Verdict::kFail || check.elements == 0) return check;
  std::vector<double> finite, stored;
  for (const double v : stage.middle) {
    if (!std::isfinite(v)) continue;
    finite.push_back(v);
    stored.push_back(storage_error(observed.dtype(), v));
  }
  check.error = norm_of_difference(observed.reals(), stage.middle);
  check.limit = ensemble_factor(deviations.size()) * root_mean_square(deviations) + norm(stored);
  check.share = check.error == 0.0 ? 0.0 : check.error / check.limit;
  check.verdict = check.share <= 1.0 ? Verdict::kPass : Verdict::kFail;
  check.over_limit = check.verdict == Verdict::kFail ? check.elements : 0;
  check.reason.clear();
  check.worst.reset();
  if (check.verdict == Verdict::kFail) {
    check.reason =
        fmt::format("the tensor deviates by {:.3g} (2-norm), the ensemble allows {:.3g}", check.error, check.limit);
  } else if (!(check.limit < norm(finite))) {
    check.verdict = Verdict::kMistrusted;
    check.reason = norm(finite) == 0.0 ? "the truth is zero everywhere"
                                       : "the ensemble's spread is as large as the values: zeros would have passed";
  }
  return check;
}

}  // namespace assay::harness
