// Limits of a trace.
//
// Local. The reference's own text is read with the scalar Bound: an upper bound of what any implementation may be off
// at a stage, given the records of the stages before it, if it computes in the format and stores in the dtype that its
// records have. Derivation: reference/bound.h; the store itself is added by judge_values.
//
// End to end. Propagating worst cases through every layer says nothing (they grow like the product of all operator
// norms), so the limit is an ensemble: kEnsemble seeded forward passes in which every element of every stage is
// disturbed by a uniform random part of its local limit. Let d_i be the 2-norms of their deviations from the
// undisturbed pass. ln d is treated as normal; the limit is the upper prediction bound of one more draw, exp(mean + t s
// sqrt(1 + 1/n)) with Student's t at n-1 degrees of freedom and the stated confidence 1 - kDoubt. An implementation's
// own roundings are smaller than the worst cases the ensemble draws from.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <fmt/format.h>
#include <boost/math/distributions/students_t.hpp>

#include "cases/error.h"
#include "cases/formats.h"
#include "harness/glob.h"
#include "harness/judge.h"
#include "harness/verify.h"
#include "reference/decide.h"

namespace assay::harness {
namespace {

using reference::Array;
using reference::Ball;
using reference::Bound;
using reference::Context;
using reference::ContextScope;
using reference::Decision;
using reference::Index;
using reference::Observer;
using reference::Real;

constexpr int kEnsemble = 8;
constexpr std::uint64_t kEnsembleSeed = 20260820;
constexpr double kDoubt = 1e-6;

/// Per stage: the limits of its elements; for a decision those of its scores.
using StageLimits = std::map<std::string, std::vector<double>>;

/// A pass whose stages are replaced by what was recorded.
template <class T>
class Fed : public Observer<T> {
 public:
  explicit Fed(const Trace& trace) : trace_(trace) {}

  void values(const std::string& stage, Array<T>& value) override {
    seen(stage, value);
    const auto found = trace_.stages.find(stage);
    if (found == trace_.stages.end()) return;
    const Tensor& tensor = found->second.front().tensor;
    check_size(stage, found->second.front(), value.size());
    for (std::int64_t i = 0; i < value.size(); ++i) value[i] = T(tensor.real(i));
  }

  void decision(const std::string& stage, Decision<T>& decision) override {
    decided(stage, decision);
    const auto found = trace_.stages.find(stage);
    if (found == trace_.stages.end()) return;
    check_size(stage, found->second.front(), decision.chosen.size());
    decision.chosen.data = found->second.front().tensor.integers();
  }

 protected:
  virtual void seen(const std::string&, const Array<T>&) {}
  virtual void decided(const std::string&, const Decision<T>&) {}

  static void check_size(const std::string& stage, const Recorded& recorded, std::int64_t size) {
    if (recorded.tensor.size() == size) return;
    throw InputError("tensor " + recorded.name, "shape " + to_string(recorded.tensor.shape()),
                     fmt::format("stage {} has {} elements", stage, size));
  }

  const Trace& trace_;
};

/// First pass: the limits of every stage.
class LimitPass : public Fed<Bound> {
 public:
  using Fed<Bound>::Fed;
  StageLimits limits;

 private:
  static std::vector<double> errors(const Array<Bound>& values) {
    std::vector<double> result;
    result.reserve(values.data.size());
    for (const Bound& value : values.data) result.push_back(value.e);
    return result;
  }
  void seen(const std::string& stage, const Array<Bound>& value) override { limits[stage] = errors(value); }
  void decided(const std::string& stage, const Decision<Bound>& decision) override {
    limits[stage] = errors(decision.scores);
  }
};

/// Second pass: the truth of every stage given the records before it.
template <class T>
class LocalPass : public Fed<T> {
 public:
  LocalPass(const Trace& trace, const StageLimits& limits, const VerifySettings& settings)
      : Fed<T>(trace), limits_(limits), settings_(settings) {}
  std::vector<Check> checks;

 private:
  void seen(const std::string& stage, const Array<T>& value) override {
    settings_.progress(stage);
    const auto found = this->trace_.stages.find(stage);
    if (found == this->trace_.stages.end() || !glob_match(settings_.filter, stage)) return;
    const Truth truth = truth_of(value);
    for (const Recorded& recorded : found->second) {
      this->check_size(stage, recorded, value.size());
      checks.push_back(judge_values(recorded.tensor, truth, limits_.at(stage)));
      name(checks.back(), stage, recorded);
    }
  }

  void decided(const std::string& stage, const Decision<T>& decision) override {
    settings_.progress(stage);
    const auto found = this->trace_.stages.find(stage);
    if (found == this->trace_.stages.end() || !glob_match(settings_.filter, stage)) return;
    for (const Recorded& recorded : found->second) {
      this->check_size(stage, recorded, decision.chosen.size());
      checks.push_back(judge_choice<T>(recorded.tensor, decision, limits_.at(stage), nullptr));
      name(checks.back(), stage, recorded);
    }
  }

  static void name(Check& check, const std::string& stage, const Recorded& recorded) {
    check.stage = stage;
    check.recorded = recorded.name;
    check.scope = "local";
  }

  const StageLimits& limits_;
  const VerifySettings& settings_;
};

struct EndToEndStage {
  Truth truth;
  std::vector<double> middle;
};

/// The undisturbed pass from the inputs alone. Follows the record where it resolves an exact tie in another legal way.
template <class T>
class FreePass : public Observer<T> {
 public:
  FreePass(const Trace& trace, const VerifySettings& settings) : trace_(trace), settings_(settings) {}
  std::map<std::string, EndToEndStage> stages;
  std::map<std::string, Index> choices;
  std::vector<Check> checks;  ///< of the decisions

  void values(const std::string& stage, Array<T>& value) override {
    settings_.progress(stage + " (end to end)");
    if (!trace_.stages.count(stage)) return;
    EndToEndStage& kept = stages[stage];
    kept.truth = truth_of(value);
    for (const T& v : value.data) kept.middle.push_back(reference::midpoint(v));
  }

  void decision(const std::string& stage, Decision<T>& decision) override {
    const auto found = trace_.stages.find(stage);
    if (found != trace_.stages.end()) {
      Index adopted = decision.chosen;
      for (const Recorded& recorded : found->second) {
        const Check check = judge_choice<T>(recorded.tensor, decision, {}, &adopted);
        if (!glob_match(settings_.filter, stage)) continue;
        checks.push_back(check);
        checks.back().stage = stage;
        checks.back().recorded = recorded.name;
        checks.back().scope = "end to end";
      }
      decision.chosen = adopted;
    }
    choices[stage] = decision.chosen;
  }

 private:
  const Trace& trace_;
  const VerifySettings& settings_;
};

/// A pass in double with every stage disturbed by a random part of its limit and every choice as in the free pass.
class DisturbedPass : public Observer<double> {
 public:
  DisturbedPass(const StageLimits& limits, const std::map<std::string, Index>& choices, std::uint64_t seed)
      : limits_(limits), choices_(choices), random_(seed) {}
  std::map<std::string, std::vector<double>> stages;

  void values(const std::string& stage, Array<double>& value) override {
    const std::vector<double>& limits = limits_.at(stage);
    for (std::int64_t i = 0; i < value.size(); ++i) {
      // 53 random bits make a number in [-1, 1), the same on every platform.
      const double part = static_cast<double>(random_() >> 11) * 0x1p-52 - 1.0;
      const double limit = limits[static_cast<std::size_t>(i)];
      if (std::isfinite(limit)) value[i] += part * limit;
    }
    stages[stage] = value.data;
  }

  void decision(const std::string& stage, Decision<double>& decision) override { decision.chosen = choices_.at(stage); }

 private:
  const StageLimits& limits_;
  const std::map<std::string, Index>& choices_;
  std::mt19937_64 random_;
};

double norm_of_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::isfinite(a[i]) ? (a[i] - b[i]) * (a[i] - b[i]) : 0.0;
  return std::sqrt(sum);
}

/// t times the root mean square of the ensemble's deviations.
double ensemble_limit(const std::vector<double>& deviations) {
  const double n = static_cast<double>(deviations.size());
  double square = 0.0;
  for (const double d : deviations) square += d * d / n;
  const boost::math::students_t_distribution<double> t(n);
  return quantile(t, 1.0 - kDoubt / 2.0) * std::sqrt(square);
}

/// A whole tensor end to end: 2-norms of the deviation and of the limit.
Check judge_norm(const Tensor& observed, const EndToEndStage& stage, const std::vector<double>& deviations) {
  const std::vector<double> none(stage.middle.size(), std::numeric_limits<double>::infinity());
  Check check = judge_values(observed, stage.truth, none);  // special values, sizes, certificate, relative error
  if (check.verdict == Verdict::kFail || check.elements == 0) return check;
  double truth = 0.0, stored = 0.0;
  for (const double v : stage.middle) {
    if (!std::isfinite(v)) continue;
    truth += v * v;
    stored += storage_error(observed.dtype(), v) * storage_error(observed.dtype(), v);
  }
  truth = std::sqrt(truth);
  check.error = norm_of_difference(observed.reals(), stage.middle);
  check.limit = ensemble_limit(deviations) + std::sqrt(stored);
  check.share = check.error == 0.0 ? 0.0 : check.error / check.limit;
  check.verdict = check.share <= 1.0 ? Verdict::kPass : Verdict::kFail;
  check.over_limit = check.verdict == Verdict::kFail ? check.elements : 0;
  check.reason.clear();
  check.worst.reset();
  if (check.verdict == Verdict::kFail) {
    check.reason =
        fmt::format("the tensor deviates by {:.3g} (2-norm), the ensemble allows {:.3g}", check.error, check.limit);
  } else if (truth == 0.0 || !(check.limit < truth)) {
    check.verdict = Verdict::kMistrusted;
    check.reason = truth == 0.0 ? "the truth is zero everywhere"
                                : "the ensemble's spread is as large as the values: zeros would have passed";
  }
  return check;
}

/// The formats an implementation used, from what it recorded: activations in the coarsest real dtype, sums in F32 or
/// better.
reference::RoundingModel rounding_of(const Trace& trace) {
  double coarsest = 0x1p-53;
  for (const auto& [stage, records] : trace.stages)
    for (const Recorded& recorded : records)
      if (is_real(recorded.tensor.dtype()) && recorded.tensor.dtype() != DType::kF64)
        coarsest = std::max(coarsest, format_of(recorded.tensor.dtype())->unit_roundoff);
  reference::RoundingModel model;
  if (coarsest > 0x1p-53) {
    model.compute = fp32().unit_roundoff;
    model.tiny = 0x1p-126;
  }
  model.activation = coarsest;
  return model;
}

template <class T>
std::vector<Check> verify_in(const Checkpoint& checkpoint, const Trace& trace, const VerifySettings& settings) {
  Context wanted;
  wanted.bits = settings.bits;
  wanted.rounding = rounding_of(trace);
  LimitPass limit_pass(trace);
  {
    const ContextScope scope(wanted);
    settings.progress("limits");
    forward<Bound>(checkpoint, trace.inputs, trace.conventions, limit_pass);
  }
  // Ball: decisions that the radii leave open restart the pass at twice the precision (design section 3).
  while (true) {
    const ContextScope scope(wanted);
    try {
      LocalPass<T> local(trace, limit_pass.limits, settings);
      forward<T>(checkpoint, trace.inputs, trace.conventions, local);
      FreePass<T> free(trace, settings);
      forward<T>(checkpoint, trace.inputs, trace.conventions, free);
      std::map<std::string, std::vector<double>> deviations;
      for (int run = 0; run < kEnsemble; ++run) {
        settings.progress(fmt::format("ensemble {}/{}", run + 1, kEnsemble));
        DisturbedPass disturbed(limit_pass.limits, free.choices, kEnsembleSeed + static_cast<std::uint64_t>(run));
        forward<double>(checkpoint, trace.inputs, trace.conventions, disturbed);
        for (const auto& [stage, kept] : free.stages)
          deviations[stage].push_back(norm_of_difference(kept.middle, disturbed.stages.at(stage)));
      }
      std::vector<Check> checks = std::move(local.checks);
      checks.insert(checks.end(), free.checks.begin(), free.checks.end());
      for (const auto& [stage, kept] : free.stages) {
        if (!glob_match(settings.filter, stage)) continue;
        for (const Recorded& recorded : trace.stages.at(stage)) {
          Check check = judge_norm(recorded.tensor, kept, deviations.at(stage));
          check.stage = stage;
          check.recorded = recorded.name;
          check.scope = "end to end";
          checks.push_back(check);
        }
      }
      return checks;
    } catch (const reference::Undecided&) {
      if (wanted.bits >= wanted.cap_bits) {
        wanted.ties_are_final = true;
      } else {
        wanted.bits *= 2;
      }
    }
  }
}

}  // namespace

std::vector<Check> verify_trace(const Checkpoint& checkpoint, const Trace& trace, const VerifySettings& settings) {
  std::vector<Check> checks;
  switch (settings.scalar) {
    case ScalarKind::kDouble:
      checks = verify_in<double>(checkpoint, trace, settings);
      break;
    case ScalarKind::kReal:
      checks = verify_in<Real>(checkpoint, trace, settings);
      break;
    case ScalarKind::kBall:
      checks = verify_in<Ball>(checkpoint, trace, settings);
      break;
  }
  for (const std::string& name : trace.unmapped) {
    Check skipped;
    skipped.stage = skipped.recorded = name;
    skipped.scope = "local";
    skipped.verdict = Verdict::kSkipped;
    skipped.reason = "no stage of the map claims this name";
    checks.push_back(skipped);
  }
  return checks;
}

std::string certainty_of(const std::vector<Check>& checks, const VerifySettings& settings) {
  if (settings.scalar == ScalarKind::kDouble) return "reference in double, not certified";
  if (settings.scalar == ScalarKind::kReal) return fmt::format("reference in {} bits, not certified", settings.bits);
  double widest = 0.0;
  for (const Check& check : checks) widest = std::max(widest, check.certified);
  return fmt::format("reference certified to {:.1e} relative at {} bits", widest, settings.bits);
}

}  // namespace assay::harness
