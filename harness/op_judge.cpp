#include "harness/op_judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "cases/error.h"
#include "harness/ensemble.h"
#include "harness/judge.h"
#include "reference/evaluate.h"
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
using reference::Results;
using reference::RoundingModel;
using reference::Sampled;

/// Bits of a second evaluation, by their factor: enough for a truth of 2^-140 between terms of order 1.
constexpr int kFiner = 4;

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

Check size_mismatch(const ObservedOutput& output, const Shape& expected) {
  Check check;
  check.verdict = Verdict::kFail;
  check.reason =
      fmt::format("recorded shape {}, the op gives {}", to_string(output.tensor.shape()), to_string(expected));
  return check;
}

/// All that judging the outputs of one call needs; evaluations are made once per dtype of an output.
class OpJudge {
 public:
  OpJudge(const OpCall& call, const RoundingModel& model, const JudgeSettings& settings)
      : call_(call), model_(model), settings_(settings) {
    wanted_.bits = settings.bits;
    wanted_.rounding = model;
    evaluate_truth();
  }

  Check judge(const ObservedOutput& output) {
    const auto found = truth_.find(output.output);
    ASSAY_CHECK(found != truth_.end());
    if (output.is_choice) return judge_ids(output);
    if (const Index* index = std::get_if<Index>(&found->second)) {
      if (index->size() != output.tensor.size()) return size_mismatch(output, index->shape);
      return judge_index(output.tensor, *index);
    }
    Check check = judge_real(output);
    if (check.verdict != Verdict::kMistrusted || finer_) return check;
    finer_ = true;  // the truth may have drowned in the cancellation of its terms
    wanted_.bits *= kFiner;
    evaluate_truth();
    return judge_real(output);
  }

 private:
  void evaluate_truth() {
    const ContextScope scope(wanted_);
    truth_ = reference::evaluate_certain(call_);
  }

  Context before_store(DType dtype) const {
    Context result = wanted_;
    result.rounding = reference::before_store(model_, call_.spec->name, dtype);
    return result;
  }

  const Results<Bound>& bounds(DType dtype) {
    auto found = bounds_.find(dtype);
    if (found == bounds_.end()) {
      const ContextScope scope(before_store(dtype));
      found = bounds_.emplace(dtype, reference::evaluate<Bound>(call_)).first;
    }
    return found->second;
  }

  const std::vector<Results<Sampled>>& members(DType dtype) {
    std::vector<Results<Sampled>>& runs = members_[dtype];
    for (int run = static_cast<int>(runs.size()); run < kEnsemble; ++run) {
      const ContextScope scope(member(before_store(dtype), run));
      runs.push_back(reference::evaluate<Sampled>(call_));
    }
    return runs;
  }

  std::vector<double> limits(const std::string& output, DType dtype) {
    std::vector<double> result;
    for (const Bound& bound : std::get<Array<Bound>>(bounds(dtype).at(output)).data) result.push_back(bound.e);
    return result;
  }

  Check judge_real(const ObservedOutput& output) {
    const Array<Ball>& values = std::get<Array<Ball>>(truth_.at(output.output));
    if (values.size() != output.tensor.size()) return size_mismatch(output, values.shape);
    const DType dtype = output.tensor.dtype();
    const ContextScope scope(before_store(dtype));
    const Kept expected = kept(values);
    Check check = judge_values(output.tensor, expected.truth, limits(output.output, dtype));
    if (check.verdict == Verdict::kMistrusted && zeros_are_right(expected)) {
      if (norm(expected.middle) > 0.0)
        check.reason = "zeros are right: every value is below the normal numbers of f32";
      check.verdict = Verdict::kPass;
      return check;
    }
    if (check.verdict == Verdict::kFail) return check;
    if (!settings_.spread && check.verdict == Verdict::kPass) return check;
    return with_spread(std::move(check), judge_spread(output, expected));
  }

  Check judge_spread(const ObservedOutput& output, const Kept& expected) {
    std::vector<double> deviations;
    for (const Results<Sampled>& run : members(output.tensor.dtype())) {
      std::vector<double> sample;
      for (const Sampled& v : std::get<Array<Sampled>>(run.at(output.output)).data) sample.push_back(v.v);
      deviations.push_back(norm_of_difference(expected.middle, sample));
    }
    return judge_norm(output.tensor, expected, deviations);
  }

  /// The element-wise check, failed by a failing spread, and saved by it where its own limits say nothing.
  static Check with_spread(Check check, Check spread) {
    check.spread = spread.share;
    if (spread.verdict == Verdict::kFail || check.verdict == Verdict::kMistrusted) {
      spread.spread = spread.share;
      spread.fixed = check.fixed;
      if (spread.verdict == Verdict::kPass)
        spread.reason = "limit by ensemble: propagated worst cases say nothing here";
      return spread;
    }
    return check;
  }

  /// A tensor of zeros and infinities, or without elements (no complete pool), is a legal result of a single op; so is
  /// one of values that an implementation may flush.
  bool zeros_are_right(const Kept& expected) const {
    const double tiny = model_.tiny;
    return std::all_of(expected.truth.values.begin(), expected.truth.values.end(), [tiny](const Ball& ball) {
      const double middle = reference::midpoint(ball);
      return std::isinf(middle) || std::abs(middle) + reference::radius(ball) <= tiny;
    });
  }

  Check judge_ids(const ObservedOutput& output) {
    std::vector<double> score_limits;
    const Decision<Ball> decision =
        call_.spec->name == "router" ? routing(score_limits) : selection(output.output);
    if (decision.chosen.dim(0) == 0 || output.tensor.size() % decision.chosen.dim(0) != 0)
      return size_mismatch(output, decision.chosen.shape);
    if (is_real(output.tensor.dtype()))
      throw InputError("tensor " + output.recorded, std::string(name_of(output.tensor.dtype())), "integers are needed");
    Check check = judge_choice<Ball>(output.tensor, decision, score_limits, nullptr);
    // A call that selects everything is a legal case: its ids are compared all the same.
    if (check.verdict == Verdict::kMistrusted && check.rows_equal + check.rows_tied == decision.chosen.dim(0))
      check.verdict = Verdict::kPass;
    return check;
  }

  /// The choice of a select_tokens call, as token ids or as pools, from its results and inputs.
  Decision<Ball> selection(const std::string& output) const {
    Decision<Ball> decision;
    decision.chosen = std::get<Index>(truth_.at(output));
    for (const Ball& m : std::get<Array<Ball>>(truth_.at("margin")).data)
      decision.margin.push_back(reference::midpoint(m));
    const Index& tied = std::get<Index>(truth_.at("tied"));
    decision.tied.resize(decision.margin.size());
    for (std::int64_t t = 0; t < tied.dim(0); ++t)
      for (std::int64_t p = 0; p < tied.dim(1); ++p)
        if (tied.at(t, p) != 0) decision.tied[static_cast<std::size_t>(t)].push_back(p);
    decision.scores = reference::load<Ball>(call_.inputs.at("scores"));
    if (output == "pools") return decision;
    decision.first_token = reference::load_index(call_.inputs.at("first_token"));
    decision.kpool = call_.attributes.at("kpool");
    decision.visible_start = reference::load_index(call_.inputs.at("visible_start"));
    decision.visible_end = reference::load_index(call_.inputs.at("visible_end"));
    return decision;
  }

  /// The choice of a router call: its scores are sigmoid(logit) + bias, off by what the logits may be off.
  Decision<Ball> routing(std::vector<double>& score_limits) {
    Decision<Ball> decision;
    decision.chosen = std::get<Index>(truth_.at("experts"));
    for (const Ball& m : std::get<Array<Ball>>(truth_.at("margin")).data)
      decision.margin.push_back(reference::midpoint(m));
    decision.tied.resize(decision.margin.size());
    const Array<Ball>& logits = std::get<Array<Ball>>(truth_.at("logits"));
    const Array<Bound>& off = std::get<Array<Bound>>(bounds(DType::kF32).at("logits"));
    const bool biased = call_.inputs.count("bias") != 0;
    decision.scores = Array<Ball>(logits.shape);
    const ContextScope scope(before_store(DType::kF32));
    for (std::int64_t i = 0; i < logits.size(); ++i) {
      const double bias = biased ? call_.inputs.at("bias").real(i % logits.dim(1)) : 0.0;
      decision.scores[i] = reference::sigmoid(logits[i]) + Ball(bias);
      score_limits.push_back((reference::sigmoid(off[i]) + Bound(bias)).e);
    }
    return decision;
  }

  const OpCall& call_;
  const RoundingModel& model_;
  const JudgeSettings& settings_;
  Context wanted_;
  bool finer_ = false;
  Results<Ball> truth_;
  std::map<DType, Results<Bound>> bounds_;
  std::map<DType, std::vector<Results<Sampled>>> members_;
};

}  // namespace

std::vector<Check> judge_op(const OpCall& call, const std::vector<ObservedOutput>& outputs,
                            const RoundingModel& model, const JudgeSettings& settings) {
  OpJudge judge(call, model, settings);
  std::vector<Check> checks;
  for (const ObservedOutput& output : outputs) {
    checks.push_back(judge.judge(output));
    checks.back().recorded = output.recorded;
  }
  return checks;
}

}  // namespace assay::harness
