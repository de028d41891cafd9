#include "harness/judge.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "cases/formats.h"

namespace assay::harness {
namespace {

using reference::Ball;
using reference::Decision;
using reference::Index;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// An upper bound of |observed - truth| over the truth's ball; infinity if a special value breaks the rules.
double distance(double observed, const Ball& truth) {
  const double middle = reference::midpoint(truth);
  if (std::isnan(observed) || std::isnan(middle)) return kInfinity;
  if (std::isinf(observed) || std::isinf(middle)) return observed == middle ? 0.0 : kInfinity;
  const Ball difference = Ball(observed) - truth;
  Ball magnitude = reference::abs(difference);
  arf_t upper;
  arf_init(upper);
  arb_get_ubound_arf(upper, magnitude.data(), 53);
  const double result = arf_get_d(upper, ARF_RND_CEIL);
  arf_clear(upper);
  return result;
}

std::vector<std::int64_t> unravel(std::int64_t flat, const Shape& shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    index[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return index;
}

std::string hex(double value) { return fmt::format("{:a}", value); }

std::string index_text(const std::vector<std::int64_t>& index) { return fmt::format("[{}]", fmt::join(index, ", ")); }

std::string describe(const Element& e) {
  return fmt::format("element {}: {:.17g} ({}), expected {:.17g} ({}), off by {:.3g}, limit {:.3g}",
                     index_text(e.index), e.observed, hex(e.observed), e.expected, hex(e.expected),
                     std::abs(e.observed - e.expected), e.limit);
}

/// The ids of `set` that `other` lacks.
std::vector<std::int64_t> difference(const std::set<std::int64_t>& set, const std::set<std::int64_t>& other) {
  std::vector<std::int64_t> result;
  std::set_difference(set.begin(), set.end(), other.begin(), other.end(), std::back_inserter(result));
  return result;
}

bool repeats(const Index& ids, std::int64_t row, const std::set<std::int64_t>& set) {
  const std::int64_t* begin = ids.row(row, ids.dim(1));
  return std::count_if(begin, begin + ids.dim(1), [](std::int64_t id) { return id >= 0; }) !=
         static_cast<std::int64_t>(set.size());
}

/// The candidate a chosen id stands for: its pool, or the expert itself; -1 for a token of the tail or of no pool.
template <class T>
std::int64_t candidate_of(const Decision<T>& decision, std::int64_t row, std::int64_t id) {
  if (decision.kpool == 0) return id < decision.scores.dim(1) ? id : -1;
  for (std::int64_t p = 0; p < decision.first_token.size(); ++p) {
    const std::int64_t first = decision.first_token[p];
    if (id < first || id >= first + decision.kpool) continue;
    const bool visible = decision.visible_start[row] <= first && first + decision.kpool <= decision.visible_end[row];
    return visible ? p : -1;
  }
  return -1;
}

/// The candidates that the ids stand for; nothing if an id belongs to none, or if a pool is not there as a whole.
template <class T>
std::optional<std::set<std::int64_t>> candidates_of(const Decision<T>& decision, std::int64_t row,
                                                    const std::vector<std::int64_t>& ids) {
  std::map<std::int64_t, std::int64_t> tokens;
  for (const std::int64_t id : ids) ++tokens[candidate_of(decision, row, id)];
  std::set<std::int64_t> candidates;
  for (const auto& [candidate, count] : tokens) {
    if (candidate < 0 || (decision.kpool > 0 && count != decision.kpool)) return std::nullopt;
    candidates.insert(candidate);
  }
  return candidates;
}

template <class T>
bool explained_by_margin(const Decision<T>& decision, const std::vector<double>& limits, std::int64_t row,
                         const std::set<std::int64_t>& gained, const std::set<std::int64_t>& lost) {
  if (limits.empty()) return false;
  const std::int64_t width = decision.scores.dim(1);
  for (const std::int64_t g : gained)
    for (const std::int64_t l : lost) {
      const double gap =
          reference::midpoint(decision.scores.at(row, l)) - reference::midpoint(decision.scores.at(row, g));
      const double allowed =
          limits[static_cast<std::size_t>(row * width + g)] + limits[static_cast<std::size_t>(row * width + l)];
      if (!(gap <= allowed)) return false;
    }
  return true;
}

}  // namespace

std::set<std::int64_t> row_set(const Index& ids, std::int64_t row) {
  std::set<std::int64_t> set;
  for (std::int64_t j = 0; j < ids.dim(1); ++j)
    if (ids.at(row, j) >= 0) set.insert(ids.at(row, j));
  return set;
}

template <class T>
Truth truth_of(const reference::Array<T>& values) {
  Truth truth;
  truth.values.reserve(values.data.size());
  for (const T& value : values.data) truth.values.push_back(reference::to_ball(value));
  return truth;
}

double storage_error(DType dtype, double value) {
  if (!is_real(dtype) || !std::isfinite(value)) return 0.0;
  if (dtype == DType::kF64) return std::max(0x1p-53 * std::abs(value), 0x1p-1074);
  const Format& format = *format_of(dtype);
  return std::max(format.unit_roundoff * std::abs(value), 0.5 * format.min_positive);
}

Check judge_values(const Tensor& observed, const Truth& truth, const std::vector<double>& limits) {
  ASSAY_CHECK(observed.size() == static_cast<std::int64_t>(truth.values.size()) &&
              truth.values.size() == limits.size());
  Check check;
  check.elements = observed.size();
  long double squared_error = 0.0L, squared_truth = 0.0L, squared_limit = 0.0L;  // squares of doubles overflow double
  double largest = 0.0, widest = 0.0;
  std::int64_t worst = -1;
  double worst_share = -1.0;
  for (std::int64_t i = 0; i < observed.size(); ++i) {
    const Ball& value = truth.values[static_cast<std::size_t>(i)];
    const double expected = reference::midpoint(value), seen = observed.real(i);
    const double propagated = std::isfinite(expected) ? limits[static_cast<std::size_t>(i)] : 0.0;
    // The store rounds what the implementation holds, at most |truth| + propagated.
    const double limit = propagated + storage_error(observed.dtype(), std::abs(expected) + propagated);
    const double error = distance(seen, value);
    const double share = error == 0.0 ? 0.0 : error / limit;
    if (!(share <= 1.0)) ++check.over_limit;
    if (worst < 0 || !(share <= worst_share)) {
      worst = i;
      worst_share = std::isnan(share) ? kInfinity : share;
      check.error = error;
      check.limit = limit;
      check.worst = Element{unravel(i, observed.shape()), seen, expected, limit};
    }
    if (!std::isfinite(expected)) continue;
    const auto square = [](long double x) { return x * x; };
    squared_error += square(error);
    squared_truth += square(expected);
    squared_limit += square(limit);
    largest = std::max(largest, std::abs(expected));
    widest = std::max(widest, reference::radius(value));
  }
  check.share = std::max(worst_share, 0.0);
  check.relative_error =
      static_cast<double>(std::sqrt(squared_truth > 0.0L ? squared_error / squared_truth : squared_error));
  check.certified = largest > 0.0 ? widest / largest : 0.0;
  if (check.over_limit > 0) {
    check.verdict = Verdict::kFail;
    check.reason = fmt::format("{} of {} elements beyond their limit; worst {}", check.over_limit, check.elements,
                               describe(*check.worst));
  } else if (check.elements == 0) {
    check.verdict = Verdict::kMistrusted;
    check.reason = "nothing was compared";
  } else if (squared_truth == 0.0L) {
    check.verdict = Verdict::kMistrusted;
    check.reason = "the truth is zero everywhere";
  } else if (!(squared_limit < squared_truth)) {
    check.verdict = Verdict::kMistrusted;
    check.reason = "the limits are as large as the values: zeros would have passed";
  } else {
    check.verdict = Verdict::kPass;
  }
  return check;
}

template <class T>
Check judge_choice(const Tensor& observed, const Decision<T>& decision, const std::vector<double>& score_limits,
                   Index* adopted) {
  const std::int64_t rows = decision.chosen.dim(0), width = observed.size() / std::max<std::int64_t>(rows, 1);
  const Index seen({rows, width}, observed.integers());
  Check check;
  check.is_set = true;
  check.elements = rows;
  std::string first_unexplained;
  std::int64_t rows_with_choice = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::set<std::int64_t> mine = row_set(decision.chosen, r), theirs = row_set(seen, r);
    if (std::isfinite(decision.margin[static_cast<std::size_t>(r)])) ++rows_with_choice;
    const bool twice = repeats(seen, r, theirs);
    if (mine == theirs && !twice) {
      ++check.rows_equal;
      continue;
    }
    const auto gained = candidates_of(decision, r, difference(theirs, mine));  // only they chose these
    const auto lost = candidates_of(decision, r, difference(mine, theirs));    // only the reference did
    const std::vector<std::int64_t>& tied = decision.tied[static_cast<std::size_t>(r)];
    const auto in_tie = [&](std::int64_t c) { return std::find(tied.begin(), tied.end(), c) != tied.end(); };
    const bool legal = !twice && mine.size() == theirs.size() && gained && lost;
    if (legal && std::all_of(gained->begin(), gained->end(), in_tie) &&
        std::all_of(lost->begin(), lost->end(), in_tie)) {
      ++check.rows_tied;
      if (adopted) {
        ASSAY_CHECK(adopted->dim(1) >= static_cast<std::int64_t>(theirs.size()));
        for (std::int64_t j = 0; j < adopted->dim(1); ++j) adopted->at(r, j) = j < width ? seen.at(r, j) : -1;
      }
    } else if (legal && explained_by_margin(decision, score_limits, r, *gained, *lost)) {
      ++check.rows_by_margin;
    } else {
      if (check.rows_unexplained++ == 0) {
        first_unexplained = fmt::format("row {}: chose {{{}}}{}, the reference {{{}}}, margin {:.3g}", r,
                                        fmt::join(theirs, ", "), twice ? " (some twice)" : "", fmt::join(mine, ", "),
                                        decision.margin[static_cast<std::size_t>(r)]);
      }
    }
  }
  check.over_limit = check.rows_unexplained;
  check.relative_error = rows == 0 ? 0.0 : 1.0 - static_cast<double>(check.rows_equal) / static_cast<double>(rows);
  if (check.rows_unexplained > 0) {
    check.verdict = Verdict::kFail;
    check.reason = fmt::format("{} of {} rows differ without a tie or a margin that explains it; {}",
                               check.rows_unexplained, rows, first_unexplained);
  } else if (rows == 0 || rows_with_choice == 0) {
    check.verdict = Verdict::kMistrusted;
    check.reason = rows == 0 ? "nothing was compared" : "every row selects everything it may see";
  } else {
    check.verdict = Verdict::kPass;
    if (check.rows_tied > 0)
      check.reason = fmt::format("{} rows differ by an exact tie at the threshold", check.rows_tied);
    if (check.rows_by_margin > 0)
      check.reason = fmt::format("{} rows differ within the margin of their scores", check.rows_by_margin);
  }
  return check;
}

#define ASSAY_INSTANTIATE(T)                           \
  template Truth truth_of(const reference::Array<T>&); \
  template Check judge_choice(const Tensor&, const Decision<T>&, const std::vector<double>&, Index*);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::harness
