#include "reference/decide.h"

#include <algorithm>
#include <limits>
#include <string>

#include "cases/error.h"

namespace assay::reference {
namespace {

struct Scored {
  std::int64_t index;
  Ball score;
};

bool is_nan(const Ball& x) { return arf_is_nan(arb_midref(x.data())) != 0; }

/// Descending by midpoint (unknown values first), lowest index first: the order that every finite precision agrees on
/// once balls separate.
bool before(const Scored& a, const Scored& b) {
  if (is_nan(a.score) || is_nan(b.score)) {
    if (is_nan(a.score) != is_nan(b.score)) return is_nan(a.score);
    return a.index < b.index;
  }
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

/// The lower or upper end of a ball as a point: exact for points, moved outwards beyond the working precision
/// otherwise.
Ball end_of(const Ball& x, bool lower) {
  if (arb_is_exact(x.data())) return x;
  constexpr slong kGuardBits = 64;
  Ball end;
  if (lower) {
    arb_get_lbound_arf(arb_midref(end.data()), x.data(), context().bits + kGuardBits);
  } else {
    arb_get_ubound_arf(arb_midref(end.data()), x.data(), context().bits + kGuardBits);
  }
  return end;
}

/// The stretch [first, last) around the threshold whose balls cannot be told apart across it; empty if they all can.
/// A winner is clear if it lies above every loser's upper end, a loser if it lies below every winner's lower end.
std::pair<std::size_t, std::size_t> unclear(const std::vector<Scored>& scored, std::size_t k) {
  if (k == 0 || k == scored.size()) return {k, k};
  std::vector<Ball> ends;
  ends.reserve(scored.size());
  for (std::size_t i = 0; i < scored.size(); ++i) ends.push_back(end_of(scored[i].score, i < k));
  std::size_t lowest = 0, highest = k;
  for (std::size_t i = 1; i < k; ++i)
    if (certainly_less(ends[i], ends[lowest])) lowest = i;
  for (std::size_t j = k + 1; j < ends.size(); ++j)
    if (certainly_less(ends[highest], ends[j])) highest = j;
  if (certainly_less(ends[highest], ends[lowest])) return {k, k};
  std::size_t first = 0, last = ends.size();
  while (certainly_less(ends[highest], ends[first])) ++first;
  while (certainly_less(ends[last - 1], ends[lowest])) --last;
  return {first, last};
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
    const bool unknown = !scored.empty() && is_nan(scored.front().score);
    const auto [first, last] = unclear(scored, wanted);
    const bool tie = first != last;
    if (unknown || (tie && !all_certainly_equal(scored, first, last))) {
      if (exact_operands && bits < context().cap_bits) {
        bits *= 2;
        continue;
      }
      if (!exact_operands && !context().ties_are_final) throw Undecided();
      if (unknown)
        throw InputError("score", "NaN for candidate " + std::to_string(scored.front().index), "numbers are allowed");
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
