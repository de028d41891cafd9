// Decisions: which experts, which pools. A decision is taken on balls with rising precision; scores that still cannot
// be told apart at the cap are equal, and the result says so instead of inventing an order (design section 3).
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "reference/ball.h"

namespace assay::reference {

/// Thrown when the operands are balls too wide to decide: the caller restarts the evaluation at a higher precision.
class Undecided : public std::runtime_error {
 public:
  Undecided() : std::runtime_error("a decision needs more precision") {}
};

struct TopK {
  /// The winners in descending order of score; among equal scores the lowest index first.
  std::vector<std::int64_t> winners;
  /// Candidates that are equal at the threshold, winners and losers together; empty unless the tie decides who wins.
  std::vector<std::int64_t> tied;
  /// Smallest winner minus largest loser (0 for a tie); infinity if nobody lost.
  double margin = 0.0;
};

/// The k best of `candidates` (all of them if there are no more than k). `score` gives the ball of a candidate at
/// context().bits; `exact_operands` says that the balls shrink as the precision rises.
/// Throws Undecided for balls that overlap across the threshold unless exact_operands or context().ties_are_final, and
/// InputError for a score that stays NaN.
TopK top_k(const std::vector<std::int64_t>& candidates, std::int64_t k, const std::function<Ball(std::int64_t)>& score,
           bool exact_operands);

}  // namespace assay::reference
