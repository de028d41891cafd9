#include "reference/decide.h"

#include <algorithm>
#include <limits>
#include <map>

#include "cases/error.h"

namespace assay::reference {
namespace {

struct Scored {
  std::int64_t index;
  Ball score;
};

/// Descending by midpoint, lowest index first: the order that every finite precision agrees on once balls separate.
bool before(const Scored& a, const Scored& b) {
  const int order = arf_cmp(arb_midref(a.score.data()), arb_midref(b.score.data()));
  return order != 0 ? order > 0 : a.index < b.index;
}

std::vector<Scored> evaluate(const std::vector<std::int64_t>& candidates,
                             const std::function<Ball(std::int64_t)>& score) {
  std::vector<Scored> scored;
  scored.reserve(candidates.size());
  for (const std::int64_t index : candidates) scored.push_back({index, score(index)});
  std::stable_sort(scored.begin(), scored.end(), before);
  return scored;
}

/// The stretch [first, last) around the threshold whose balls cannot be told apart across it; empty if they all can.
std::pair<std::size_t, std::size_t> unclear(const std::vector<Scored>& scored, std::size_t k) {
  std::size_t first = k, last = k;
  bool grown = false;
  for (std::size_t i = 0; i < k; ++i)
    for (std::size_t j = k; j < scored.size(); ++j)
      if (!certainly_less(scored[j].score, scored[i].score)) {
        first = std::min(first, i);
        last = std::max(last, j + 1);
        grown = true;
      }
  return grown ? std::pair{first, last} : std::pair{k, k};
}

bool all_certainly_equal(const std::vector<Scored>& scored, std::size_t first, std::size_t last) {
  for (std::size_t i = first + 1; i < last; ++i)
    if (!certainly_equal(scored[first].score, scored[i].score)) return false;
  return true;
}

}  // namespace

TopK top_k(const std::vector<std::int64_t>& candidates, std::int64_t k, const std::function<Ball(std::int64_t)>& score,
           bool exact_operands) {
  ASSAY_CHECK(k >= 0);
  const int start_bits = context().bits;
  int bits = start_bits;
  const std::size_t wanted = std::min(static_cast<std::size_t>(k), candidates.size());
  TopK result;
  while (true) {
    const BallBits scope(bits);
    std::vector<Scored> scored = evaluate(candidates, score);
    const auto [first, last] = unclear(scored, wanted);
    const bool tie = first != last;
    if (tie && !all_certainly_equal(scored, first, last)) {
      if (exact_operands && bits < context().cap_bits) {
        bits *= 2;
        continue;
      }
      if (!exact_operands && !context().ties_are_final) throw Undecided();
    }
    if (tie) {
      // Equal at the cap: the lowest index first, whatever the midpoints say.
      std::sort(scored.begin() + static_cast<std::ptrdiff_t>(first), scored.begin() + static_cast<std::ptrdiff_t>(last),
                [](const Scored& a, const Scored& b) { return a.index < b.index; });
      for (std::size_t i = first; i < last; ++i) result.tied.push_back(scored[i].index);
    }
    for (std::size_t i = 0; i < wanted; ++i) result.winners.push_back(scored[i].index);
    result.margin = wanted == scored.size() || wanted == 0
                        ? std::numeric_limits<double>::infinity()
                        : (tie ? 0.0 : midpoint(scored[wanted - 1].score - scored[wanted].score));
    return result;
  }
}

}  // namespace assay::reference
