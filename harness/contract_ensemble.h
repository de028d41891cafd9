// Judging outputs of a long op call against the truth of its formula by an ensemble that executes its contract in the
// form in which the implementation computes (the chunked delta rule: attribute "chunk").
//
// The truth is exact and has no form: where the op's attribute "chunk" may be null, the truth is the recurrence. The
// members are kEnsemble executions in Monte Carlo arithmetic (scalar Sampled, Execution::kRandom) of the call as it
// stands, rounding at every point of the contract before the output's own store. Deviations are taken from the truth.
//
// Two limits per output. With d_1 .. d_n the 2-norms of the members' deviations, r their root mean square and t(p)
// Student's two-sided quantile at n degrees of freedom (harness/ensemble.h):
//   tensor  t(kDoubt) r + |stores|           over the whole output
//   row     t(kDoubt / rows) r_row + |stores of the row|   over every row of the last axis (the values of one token and
//           head): by the union bound no row of a faithful implementation exceeds its own with confidence 1 - kDoubt
// The first averages over an output and sees what is wrong everywhere, the second sees one wrong token.
//
// Why random disturbances stand for nearest rounding. The roundings of an implementation are a function of its inputs,
// not random, but another one of the same contract (another order of sums, another exponent reference) rounds elsewhere:
// its errors are one draw. Rounding to nearest in a binade 2^e <= |x| < 2^(e+1) errs by at most u 2^e <= u |x|, spread
// evenly: variance (u 2^e)^2 / 3. The members' disturbance is even in [-u |x|, u |x|]: variance u^2 x^2 / 3, never less,
// and 8 ln 2 / 3 = 1.85 times as much where mantissas are spread logarithmically. A linear combination of errors
// therefore spreads more in the members than under nearest rounding. What is not covered, and should not be: rounding
// with a bias (truncation of operands), an error of one sign that no draw has.
#pragma once

#include <string>
#include <vector>

#include "harness/op_judge.h"

namespace assay::harness {

struct RowLimit {
  std::vector<std::int64_t> row;  ///< index without the last axis; empty: the output is one row
  double error = 0.0;             ///< 2-norm of the deviation of the row that used most of its limit
  double limit = 0.0;
  double share = 0.0;
};

struct EnsembleJudgement {
  Check check;  ///< of the tensor's limit; FAIL if either limit is exceeded, with a reason that names the worst row
  RowLimit worst_row;
};

/// One judgement per output, in their order. `model` must hold a contract. Throws InputError for what the op refuses
/// about its operands.
std::vector<EnsembleJudgement> judge_by_ensemble(const OpCall& call, const std::vector<ObservedOutput>& outputs,
                                                 const reference::RoundingModel& model, const JudgeSettings& settings);

}  // namespace assay::harness
