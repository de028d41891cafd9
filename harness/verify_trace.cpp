// Limits of a trace.
//
// Local. The reference's own text is read with the scalar Bound: an upper bound of what any implementation may be off
// at a stage, given the records of the stages before it, if it computes in the format and stores in the dtype that its
// records have. Derivation: reference/bound.h; the store itself is added by judge_values.
//
// End to end, and locally where propagation says nothing: an ensemble (harness/ensemble.h).
//
// Choices end to end. Scores carry the same ensemble limit; a choice that differs within it is explained by margin.
// Behind a choice that rounding may flip (in a member of the ensemble, or as recorded) the values are not determined at
// this precision: they are SKIPPED with that reason.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <boost/math/distributions/students_t.hpp>

#include "cases/error.h"
#include "cases/formats.h"
#include "harness/ensemble.h"
#include "harness/glob.h"
#include "harness/judge.h"
#include "harness/verify.h"
#include "reference/decide.h"
#include "reference/rounding.h"

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
using reference::Sampled;

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
    for (const Recorded& recorded : found->second)
      if (is_real(recorded.tensor.dtype()))
        throw InputError("tensor " + recorded.name, std::string(name_of(recorded.tensor.dtype())),
                         "the choices of stage " + stage + " are integers");
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
  std::map<std::string, Kept> far;  ///< stages whose propagated limit says nothing

 private:
  void seen(const std::string& stage, const Array<T>& value) override {
    settings_.progress(stage);
    const auto found = this->trace_.stages.find(stage);
    if (found == this->trace_.stages.end() || !glob_match(settings_.filter, stage)) return;
    Kept reference = kept(value);
    for (const Recorded& recorded : found->second) {
      this->check_size(stage, recorded, value.size());
      checks.push_back(judge_values(recorded.tensor, reference.truth, limits_.at(stage)));
      name(checks.back(), stage, recorded);
    }
    if (says_nothing(limits_.at(stage), reference)) far.emplace(stage, std::move(reference));
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

/// A disturbed pass that is fed with the records, for the stages in LocalPass::far.
class FedSample : public Fed<Sampled> {
 public:
  using Fed<Sampled>::Fed;
  std::map<std::string, std::vector<double>> stages;

 private:
  void seen(const std::string& stage, const Array<Sampled>& value) override {
    for (const Sampled& v : value.data) stages[stage].push_back(v.v);
  }
};

/// The undisturbed pass from the inputs alone. Follows the record where it resolves an exact tie in another legal way.
template <class T>
class FreePass : public Observer<T> {
 public:
  FreePass(const Trace& trace, const VerifySettings& settings) : trace_(trace), settings_(settings) {}
  std::vector<std::string> order;  ///< stages as they come
  std::map<std::string, Kept> stages;
  std::map<std::string, Decision<T>> decisions;  ///< as the reference took them
  std::map<std::string, Index> choices;          ///< as the pass went on

  void values(const std::string& stage, Array<T>& value) override {
    settings_.progress(stage + " (end to end)");
    order.push_back(stage);
    if (trace_.stages.count(stage)) stages.emplace(stage, kept(value));
  }

  void decision(const std::string& stage, Decision<T>& decision) override {
    order.push_back(stage);
    decisions.emplace(stage, decision);
    const auto found = trace_.stages.find(stage);
    if (found != trace_.stages.end()) {
      Index adopted = decision.chosen;
      for (const Recorded& recorded : found->second) judge_choice<T>(recorded.tensor, decision, {}, &adopted);
      decision.chosen = adopted;
    }
    choices[stage] = decision.chosen;
  }

 private:
  const Trace& trace_;
  const VerifySettings& settings_;
};

/// One member of the ensemble: every choice as in the free pass, rows that it would have chosen otherwise counted.
class FreeSample : public Observer<Sampled> {
 public:
  explicit FreeSample(const std::map<std::string, Index>& choices) : choices_(choices) {}
  std::map<std::string, std::vector<double>> stages;  ///< values, or the scores of a decision
  std::map<std::string, std::int64_t> flips;

  void values(const std::string& stage, Array<Sampled>& value) override { keep(stage, value); }

  void decision(const std::string& stage, Decision<Sampled>& decision) override {
    keep(stage, decision.scores);
    const Index& free = choices_.at(stage);
    for (std::int64_t row = 0; row < free.dim(0); ++row)
      if (decision.tied[static_cast<std::size_t>(row)].empty() && row_set(free, row) != row_set(decision.chosen, row))
        ++flips[stage];
    decision.chosen = free;
  }

 private:
  void keep(const std::string& stage, const Array<Sampled>& value) {
    for (const Sampled& v : value.data) stages[stage].push_back(v.v);
  }

  const std::map<std::string, Index>& choices_;
};

/// All passes over one trace in one scalar.
template <class T>
class Verification {
 public:
  Verification(const Checkpoint& checkpoint, const Trace& trace, const VerifySettings& settings)
      : checkpoint_(checkpoint), trace_(trace), settings_(settings), wanted_(reference::context()), limits_(trace) {
    wanted_.bits = settings.bits;
    wanted_.rounding = rounding_of(settings, trace);
  }

  std::vector<Check> run() {
    {
      const ContextScope scope(wanted_);
      settings_.progress("limits");
      forward<Bound>(checkpoint_, trace_.inputs, trace_.conventions, limits_);
    }
    // Decisions that the radii leave open, or a poor certificate, restart the passes at twice the precision.
    while (true) {
      const ContextScope scope(wanted_);
      const bool last = wanted_.bits >= wanted_.cap_bits;
      try {
        LocalPass<T> local(trace_, limits_.limits, settings_);
        forward<T>(checkpoint_, trace_.inputs, trace_.conventions, local);
        FreePass<T> free(trace_, settings_);
        forward<T>(checkpoint_, trace_.inputs, trace_.conventions, free);
        if (last || certified_enough(free)) {
          std::vector<Check> checks = std::move(local.checks);
          if (!local.far.empty()) judge_far(local.far, checks);
          judge_end_to_end(free, checks);
          return checks;
        }
      } catch (const reference::Undecided&) {
        if (last) wanted_.ties_are_final = true;
      }
      if (!last) wanted_.bits *= 2;
    }
  }

  int bits() const { return wanted_.bits; }

 private:
  /// A ball certifies two thirds of the bits that were asked for, everywhere.
  bool certified_enough(const FreePass<T>& free) const {
    const double goal = std::exp2(-2.0 / 3.0 * settings_.bits);
    for (const auto& [stage, reference] : free.stages) {
      if (!(widest_radius(reference) <= goal)) return false;
    }
    return true;
  }

  void judge_far(const std::map<std::string, Kept>& far, std::vector<Check>& checks) {
    std::map<std::string, std::vector<double>> deviations;
    for (int run = 0; run < kEnsemble; ++run) {
      settings_.progress(fmt::format("local ensemble {}/{}", run + 1, kEnsemble));
      const ContextScope scope(member(wanted_, run));
      FedSample sample(trace_);
      forward<Sampled>(checkpoint_, trace_.inputs, trace_.conventions, sample);
      for (const auto& [stage, reference] : far)
        deviations[stage].push_back(norm_of_difference(reference.middle, sample.stages.at(stage)));
    }
    for (Check& check : checks) {
      const auto found = far.find(check.stage);
      if (found == far.end()) continue;
      for (const Recorded& recorded : trace_.stages.at(check.stage)) {
        if (recorded.name != check.recorded) continue;
        Check judged = judge_norm(recorded.tensor, found->second, deviations.at(check.stage));
        judged.stage = check.stage;
        judged.recorded = check.recorded;
        judged.scope = check.scope;
        if (judged.verdict == Verdict::kPass)
          judged.reason = "limit by ensemble: the stage lies too far behind its last record to propagate worst cases";
        check = judged;
      }
    }
  }

  void judge_end_to_end(const FreePass<T>& free, std::vector<Check>& checks) {
    std::map<std::string, std::vector<double>> deviations;     // of tensors, per run
    std::map<std::string, std::vector<double>> score_squares;  // of scores, per element
    std::map<std::string, std::int64_t> flips;
    for (int run = 0; run < kEnsemble; ++run) {
      settings_.progress(fmt::format("ensemble {}/{}", run + 1, kEnsemble));
      const ContextScope scope(member(wanted_, run));
      FreeSample sample(free.choices);
      forward<Sampled>(checkpoint_, trace_.inputs, trace_.conventions, sample);
      for (const auto& [stage, reference] : free.stages)
        deviations[stage].push_back(norm_of_difference(reference.middle, sample.stages.at(stage)));
      for (const auto& [stage, decision] : free.decisions) {
        std::vector<double>& squares = score_squares[stage];
        const std::vector<double>& scores = sample.stages[stage];
        squares.resize(scores.size());
        for (std::size_t i = 0; i < scores.size(); ++i) {
          const double d = scores[i] - reference::midpoint(decision.scores.data[i]);
          squares[i] += d * d / kEnsemble;
        }
      }
      for (const auto& [stage, count] : sample.flips) flips[stage] += count;
    }
    std::string undetermined;  // why values from here on say nothing; empty while they do
    for (const std::string& stage : free.order) {
      const auto decision = free.decisions.find(stage);
      const bool wanted = trace_.stages.count(stage) && glob_match(settings_.filter, stage);
      if (decision != free.decisions.end()) {
        std::vector<double> limits;
        for (const double square : score_squares.at(stage)) limits.push_back(ensemble_factor() * std::sqrt(square));
        std::int64_t by_margin = 0;
        if (trace_.stages.count(stage)) {
          for (const Recorded& recorded : trace_.stages.at(stage)) {
            Check check = judge_choice<T>(recorded.tensor, decision->second, limits, nullptr);
            by_margin = std::max(by_margin, check.rows_by_margin);
            if (wanted) add(std::move(check), stage, recorded, undetermined, checks);
          }
        } else {
          note_unrecorded_ties(stage, decision->second);
        }
        if (undetermined.empty() && by_margin > 0)
          undetermined = fmt::format("{} rows of {} chose otherwise within rounding", by_margin, stage);
        if (undetermined.empty() && flips.count(stage)) undetermined = fmt::format("rounding flips rows of {}", stage);
      } else if (wanted) {
        for (const Recorded& recorded : trace_.stages.at(stage)) {
          Check check = judge_norm(recorded.tensor, free.stages.at(stage), deviations.at(stage));
          if (check.verdict == Verdict::kFail && !unrecorded_ties_.empty()) check.reason += "; " + unrecorded_ties_;
          add(std::move(check), stage, recorded, undetermined, checks);
        }
      }
    }
  }

  void note_unrecorded_ties(const std::string& stage, const Decision<T>& decision) {
    const auto rows =
        std::count_if(decision.tied.begin(), decision.tied.end(), [](const auto& t) { return !t.empty(); });
    if (rows > 0 && unrecorded_ties_.empty())
      unrecorded_ties_ = fmt::format("{} rows of {} are exact ties whose outcome is not recorded", rows, stage);
  }

  static void add(Check check, const std::string& stage, const Recorded& recorded, const std::string& undetermined,
                  std::vector<Check>& checks) {
    check.stage = stage;
    check.recorded = recorded.name;
    check.scope = "end to end";
    if (!undetermined.empty()) {
      check.verdict = Verdict::kSkipped;
      check.reason = "not determined at this precision: " + undetermined;
    }
    checks.push_back(std::move(check));
  }

  const Checkpoint& checkpoint_;
  const Trace& trace_;
  const VerifySettings& settings_;
  Context wanted_;
  LimitPass limits_;
  std::string unrecorded_ties_;
};

template <class T>
std::vector<Check> verify_in(const Checkpoint& checkpoint, const Trace& trace, VerifySettings& settings) {
  Verification<T> verification(checkpoint, trace, settings);
  std::vector<Check> checks = verification.run();
  settings.bits = verification.bits();
  return checks;
}

}  // namespace

reference::RoundingModel rounding_of(const VerifySettings& settings, DType activation) {
  if (settings.profile.empty()) return reference::recorded_rounding(activation);
  return reference::rounding_model(Contract::resolve(settings.profile, settings.flags, activation));
}

reference::RoundingModel rounding_of(const VerifySettings& settings, const Trace& trace) {
  DType coarsest = DType::kF64;
  const auto unit = [](DType dtype) { return dtype == DType::kF64 ? 0x1p-53 : format_of(dtype)->unit_roundoff; };
  for (const auto& [stage, records] : trace.stages)
    for (const Recorded& recorded : records)
      if (is_real(recorded.tensor.dtype()) && unit(recorded.tensor.dtype()) > unit(coarsest))
        coarsest = recorded.tensor.dtype();
  return rounding_of(settings, coarsest);
}

std::vector<Check> verify_trace(const Checkpoint& checkpoint, const Trace& trace, VerifySettings& settings) {
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
