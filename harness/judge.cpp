#include "harness/judge.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <type_traits>

#include <fmt/format.h>

#include "cases/error.h"
#include "cases/formats.h"
#include "reference/round_once.h"

namespace assay::harness {
namespace {

using reference::Ball;
using reference::Decision;
using reference::Index;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// arf_t with a destructor.
struct Endpoint {
  arf_t value;
  Endpoint() { arf_init(value); }
  ~Endpoint() { arf_clear(value); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
};

/// Bits kept of an end beyond those of the truth; what is cut off moves the end outwards.
constexpr slong kGuardBits = 64;
/// Errors and limits are rounded away from zero to so many bits: the same monotone rounding for both.
constexpr slong kDistanceBits = 128;
constexpr double kLargestF64 = std::numeric_limits<double>::max();

/// The values that may have been stored for one element.
struct Legal {
  double low = kInfinity, high = -kInfinity;  ///< finite values low <= x <= high; none if low > high
  bool zero = false;                          ///< 0 as well (flushed)
  double infinity = 0.0;                      ///< this infinity as well, if not 0
  bool nan = false;                           ///< NaN as well
  double stored = 0.0;                        ///< RN(v)
  double above = 0.0, below = 0.0;            ///< distances of high and low from v, negative if beyond v

  double limit() const { return std::max({above, below, 0.0}); }
};

/// The stored-value rule for one dtype (judge.h).
class StoredRule {
 public:
  StoredRule(DType dtype, const SpecialValues& special)
      : dtype_(dtype), special_(special), format_(is_real(dtype) ? format_of(dtype) : nullptr) {}

  Legal legal(const Ball& truth, bool negative_zero, double e) {
    Legal result;
    const double middle = reference::midpoint(truth);
    if (std::isnan(middle)) {
      result.nan = special_.nan_expected;
      return result;
    }
    if (std::isinf(middle)) return of_infinity(middle);
    if (!(e >= 0.0) || !arb_is_finite(truth.data())) return result;
    set_ends(truth, e);
    result.stored = round(arb_midref(truth.data()), ARF_RND_NEAR);
    if (std::isinf(result.stored)) result.infinity = result.stored;
    if (std::isnan(result.stored)) result.nan = special_.nan_expected;
    result.low = finite_low(round(low_.value, ARF_RND_FLOOR));
    result.high = finite_high(round(high_.value, ARF_RND_CEIL));
    if (special_.signed_zeros && negative_zero) {
      if (arf_is_zero(low_.value)) result.low = -0.0;
      if (arf_is_zero(high_.value)) result.high = -0.0;
    }
    result.zero = special_.flush_to_zero && std::abs(middle) < smallest_normal();
    if (result.low <= result.high) {
      result.above = e == kInfinity ? e : from(truth, result.high, false);
      result.below = e == kInfinity ? e : from(truth, result.low, true);
    }
    if (result.zero) {
      (middle > 0.0 ? result.below : result.above) =
          std::max(middle > 0.0 ? result.below : result.above, std::abs(middle));
    }
    return result;
  }

  /// Of the element that legal() was called for last.
  bool passes(const Tensor& observed, std::int64_t i, const Legal& legal) {
    const double seen = observed.real(i);
    if (std::isnan(seen)) return legal.nan;
    if (std::isinf(seen)) return legal.infinity == seen;
    if (!(legal.low <= legal.high)) return legal.zero && seen == 0.0;
    if (!is_real(dtype_)) {  // beyond 2^53 the doubles are not exact
      arf_set_si(seen_.value, observed.integer(i));
      return arf_cmp(low_.value, seen_.value) <= 0 && arf_cmp(seen_.value, high_.value) <= 0;
    }
    return (legal.zero && seen == 0.0) || (not_above(legal.low, seen) && not_above(seen, legal.high));
  }

  /// |observed - middle of the truth|, rounded up like the limits; infinity if only one of them is finite.
  double error(const Tensor& observed, std::int64_t i, const Ball& truth) {
    const double middle = reference::midpoint(truth), seen = observed.real(i);
    if (std::isnan(seen) || std::isnan(middle)) return kInfinity;
    if (std::isinf(seen) || std::isinf(middle)) return seen == middle ? 0.0 : kInfinity;
    if (is_real(dtype_)) {
      arf_set_d(seen_.value, seen);
    } else {
      arf_set_si(seen_.value, observed.integer(i));
    }
    arf_sub(seen_.value, seen_.value, arb_midref(truth.data()), kDistanceBits, ARF_RND_UP);
    arf_abs(seen_.value, seen_.value);
    return arf_get_d(seen_.value, ARF_RND_CEIL);
  }

  /// Exactly one stored value is legal. Of the element that legal() was called for last.
  bool fixed(const Legal& legal) const {
    if (!is_real(dtype_)) return legal.low <= legal.high && arf_equal(low_.value, high_.value) != 0;
    const bool one = special_.signed_zeros ? std::signbit(legal.low) == std::signbit(legal.high) : true;
    int values = !(legal.low <= legal.high) ? 0 : legal.low == legal.high && one ? 1 : 2;
    if (legal.zero && !(legal.low <= 0.0 && 0.0 <= legal.high)) ++values;
    return values + (legal.infinity != 0.0 ? 1 : 0) + (legal.nan ? 1 : 0) == 1;
  }

  double stored(double value) const {
    if (!is_real(dtype_)) return std::nearbyint(value);
    return format_ ? rounded(*format_, value, special_.overflow) : value;
  }

 private:
  Legal of_infinity(double truth) const {
    Legal result;
    result.stored = format_ ? rounded(*format_, truth, special_.overflow) : truth;
    if (std::isinf(result.stored)) {
      result.infinity = result.stored;
    } else if (std::isnan(result.stored)) {
      result.nan = special_.nan_expected;
    } else {
      result.low = result.high = result.stored;
    }
    return result;
  }

  void set_ends(const Ball& truth, double e) {
    const slong precision = arb_bits(truth.data()) + kGuardBits;
    arf_set_d(seen_.value, e);
    arb_get_lbound_arf(low_.value, truth.data(), precision);
    arf_sub(low_.value, low_.value, seen_.value, precision, ARF_RND_FLOOR);
    arb_get_ubound_arf(high_.value, truth.data(), precision);
    arf_add(high_.value, high_.value, seen_.value, precision, ARF_RND_CEIL);
    if (is_real(dtype_)) return;
    arf_ceil(low_.value, low_.value);
    arf_floor(high_.value, high_.value);
  }

  /// RN; for F64 and integers in the given direction.
  double round(const arf_struct* x, arf_rnd_t direction) const {
    return format_ ? rounded(*format_, reference::odd_double(x), special_.overflow) : arf_get_d(x, direction);
  }

  double largest() const { return format_ ? format_->max_finite : kLargestF64; }

  /// Ends that round to no finite value: from the far side the range begins at its end, from the other it is empty.
  double finite_low(double rounded_low) const {
    if (std::isfinite(rounded_low)) return rounded_low;
    if (arf_sgn(low_.value) > 0) return kInfinity;
    return format_ && !format_->has_sign ? format_->min_positive : -largest();
  }
  double finite_high(double rounded_high) const {
    if (std::isfinite(rounded_high) && (!format_ || format_->has_sign || arf_sgn(high_.value) > 0)) return rounded_high;
    return arf_sgn(high_.value) > 0 ? largest() : -kInfinity;
  }

  /// end - v, or v - end, rounded up.
  double from(const Ball& truth, double end, bool below) {
    arf_set_d(seen_.value, end);
    arf_sub(seen_.value, seen_.value, arb_midref(truth.data()), kDistanceBits, ARF_RND_UP);
    if (below) arf_neg(seen_.value, seen_.value);
    return arf_get_d(seen_.value, ARF_RND_CEIL);
  }

  bool not_above(double a, double b) const {
    if (special_.signed_zeros && a == 0.0 && b == 0.0) return std::signbit(a) || !std::signbit(b);
    return a <= b;
  }

  double smallest_normal() const {
    if (!is_real(dtype_)) return 0.0;
    return format_ ? std::ldexp(1.0, 1 - format_->bias) : std::numeric_limits<double>::min();
  }

  DType dtype_;
  SpecialValues special_;
  const Format* format_;
  Endpoint low_, high_, seen_;
};

/// Error over limit; above 1 exactly if the element does not pass. A value that is nearer than the farther end but
/// beyond the nearer one is measured by its own side.
double share_of(const Legal& legal, bool passes, double error, double seen, double middle, double* limit) {
  *limit = legal.limit();
  if (passes) return error == 0.0 ? 0.0 : error / *limit;
  if (error <= *limit) *limit = std::max(seen > middle ? legal.above : legal.below, 0.0);
  if (!(*limit > 0.0) || error == 0.0) return kInfinity;
  return std::max(error / *limit, std::nextafter(1.0, 2.0));
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

std::string number(double value) { return fmt::format("{:.17g} ({})", value, hex(value)); }

std::string describe(const Element& e, DType dtype, double error) {
  std::string text = fmt::format("element {}: {}, expected {}, off by {:.3g}", index_text(e.index), number(e.observed),
                                 number(e.expected), error);
  if (e.ulps) text += fmt::format(" ({} ULP of {})", *e.ulps, name_of(dtype));
  return text + fmt::format(", limit {:.3g}", e.limit);
}

/// Whether a check that passed could have failed, from its finite elements.
class Vacuity {
 public:
  long double squared_truth = 0.0L;
  double largest = 0.0;

  /// `allowed`: the error allowed before and by the store.
  void add(const Legal& legal, double expected, double allowed, double radius) {
    const auto square = [](long double x) { return x * x; };
    squared_truth += square(expected);
    squared_limit_ += square(legal.limit());
    largest = std::max(largest, std::abs(expected));
    if (radius > allowed) ++uncertain_;
    low_ = std::max(low_, legal.zero ? std::min(legal.low, 0.0) : legal.low);
    high_ = std::min(high_, legal.zero ? std::max(legal.high, 0.0) : legal.high);
    varies_ = varies_ || (count_ > 0 && legal.stored != stored_);
    stored_ = legal.stored;
    sum_ += expected;
    ++count_;
  }

  /// Empty if it could have failed.
  std::string reason(const StoredRule& rule) const {
    if (count_ == 0) return "the truth has no finite value";
    if (squared_truth == 0.0L) return "the truth is zero everywhere";
    if (low_ <= 0.0 && 0.0 <= high_) return "the limits are as large as the values: zeros would have passed";
    if (!(squared_limit_ < squared_truth)) return "the limits are as large as the values (2-norm)";
    const double mean = rule.stored(static_cast<double>(sum_ / static_cast<long double>(count_)));
    if (varies_ && low_ <= mean && mean <= high_) {
      return fmt::format("the limits are as large as the differences of the values: {} everywhere would have passed",
                         number(mean));
    }
    if (uncertain_ > 0) return fmt::format("the truth of {} elements is less certain than their limit", uncertain_);
    return "";
  }

 private:
  long double squared_limit_ = 0.0L, sum_ = 0.0L;
  double low_ = -kInfinity, high_ = kInfinity;  ///< what is legal everywhere
  double stored_ = 0.0;
  bool varies_ = false;  ///< the truth as stored
  std::int64_t count_ = 0, uncertain_ = 0;
};

Check wrong_size(const Tensor& observed, std::int64_t size) {
  Check check;
  check.elements = size;
  check.verdict = Verdict::kFail;
  check.reason = fmt::format("recorded {} {}, {} elements are needed", name_of(observed.dtype()),
                             to_string(observed.shape()), size);
  return check;
}

/// The first wrong element of an exact comparison.
void note_wrong(Check& check, const Tensor& observed, std::int64_t i, double expected, const std::string& seen_text,
                const std::string& expected_text) {
  const double seen = observed.real(i), error = std::abs(seen - expected);
  check.error = std::isnan(error) ? kInfinity : error;
  check.worst =
      Element{unravel(i, observed.shape()), seen, expected, 0.0, ulps_between(observed.dtype(), seen, expected)};
  check.reason = fmt::format("element {}: {}, expected {}", index_text(check.worst->index), seen_text, expected_text);
}

/// The verdict of an exact comparison.
Check concluded(Check check, bool zeros) {
  check.share = check.over_limit > 0 ? kInfinity : 0.0;
  if (check.over_limit > 0) {
    check.verdict = Verdict::kFail;
    check.reason = fmt::format("{} of {} elements differ; first {}", check.over_limit, check.elements, check.reason);
  } else if (check.elements == 0 || zeros) {
    check.verdict = Verdict::kMistrusted;
    check.reason = check.elements == 0 ? "nothing was compared" : "the truth is zero everywhere";
  } else {
    check.verdict = Verdict::kPass;
  }
  return check;
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
      if (!(gap <= allowed) || std::isinf(gap)) return false;
    }
  return true;
}

/// Whether the limits would have excused the worst candidate in the place of the best.
template <class T>
bool excuses_everything(const Decision<T>& decision, const std::vector<double>& limits, std::int64_t row) {
  const std::int64_t width = decision.scores.dim(1);
  std::int64_t best = -1, least = -1;
  double highest = -kInfinity, lowest = kInfinity;
  for (std::int64_t c = 0; c < width; ++c) {
    const double score = reference::midpoint(decision.scores.at(row, c));
    if (!std::isfinite(score)) continue;
    if (score > highest) highest = score, best = c;
    if (score < lowest) lowest = score, least = c;
  }
  return best >= 0 && best != least &&
         highest - lowest <= limits[static_cast<std::size_t>(row * width + best)] +
                                 limits[static_cast<std::size_t>(row * width + least)];
}

/// "row 3", "rows 3, 4", "rows 1, 2, 3, 4, 5 and 7 more".
std::string name_rows(const std::vector<std::int64_t>& rows) {
  constexpr std::size_t kNamed = 5;
  const std::vector<std::int64_t> named(rows.begin(),
                                        rows.begin() + std::min<std::ptrdiff_t>(kNamed, std::ssize(rows)));
  std::string text = fmt::format("row{} {}", rows.size() == 1 ? "" : "s", fmt::join(named, ", "));
  if (rows.size() > kNamed) text += fmt::format(" and {} more", rows.size() - kNamed);
  return text;
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
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, reference::Real>) {
    const auto negative_zero = [](const T& value) { return value == 0 && signbit(value); };
    if (std::any_of(values.data.begin(), values.data.end(), negative_zero))
      for (const T& value : values.data) truth.negative_zeros.push_back(negative_zero(value));
  }
  return truth;
}

double storage_error(DType dtype, double value) {
  if (!is_real(dtype) || !std::isfinite(value)) return 0.0;
  if (dtype == DType::kF64) return std::max(0x1p-53 * std::abs(value), 0x1p-1074);
  const Format& format = *format_of(dtype);
  return std::max(format.unit_roundoff * std::abs(value), 0.5 * format.min_positive);
}

std::optional<std::int64_t> ulps_between(DType dtype, double a, double b) {
  if (!is_real(dtype) || !std::isfinite(a) || !std::isfinite(b)) return std::nullopt;
  if (const Format* format = format_of(dtype)) return ulp_distance(*format, a, b);
  // Doubles of one sign are ordered like their bits.
  const auto position = [](double x) {
    const auto magnitude = static_cast<std::int64_t>(std::bit_cast<std::uint64_t>(std::abs(x)));
    return x < 0.0 ? -magnitude : magnitude;
  };
  std::int64_t distance = 0;
  if (__builtin_sub_overflow(position(std::max(a, b)), position(std::min(a, b)), &distance))
    return std::numeric_limits<std::int64_t>::max();
  return distance;
}

Check judge_values(const Tensor& observed, const Truth& truth, const std::vector<double>& limits,
                   const SpecialValues& special) {
  ASSAY_CHECK(truth.values.size() == limits.size());
  ASSAY_CHECK(truth.negative_zeros.empty() || truth.negative_zeros.size() == truth.values.size());
  const auto size = static_cast<std::int64_t>(truth.values.size());
  if (observed.size() != size) return wrong_size(observed, size);
  Check check;
  check.elements = size;
  StoredRule rule(observed.dtype(), special);
  Vacuity vacuity;
  long double squared_error = 0.0L;  // squares of doubles overflow double
  double widest = 0.0, worst_rank = -kInfinity;
  std::string only;  // the legal value of the worst element, if it has just one
  for (std::int64_t i = 0; i < size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const Ball& value = truth.values[at];
    const double expected = reference::midpoint(value), seen = observed.real(i);
    const Legal legal = rule.legal(value, !truth.negative_zeros.empty() && truth.negative_zeros[at], limits[at]);
    const bool passes = rule.passes(observed, i, legal), fixed = rule.fixed(legal);
    const double error = passes && !std::isfinite(seen) ? 0.0 : rule.error(observed, i, value);
    double limit = 0.0;
    const double share = share_of(legal, passes, error, seen, expected, &limit);
    if (!passes) ++check.over_limit;
    if (fixed) ++check.fixed;
    // A fixed element that is right has no freedom that it could have used: it is the worst only among its like.
    const double rank = passes && fixed ? share - 2.0 : share;
    if (!check.worst || rank > worst_rank) {
      worst_rank = rank;
      check.share = share;
      check.error = error;
      check.limit = limit;
      check.worst = Element{unravel(i, observed.shape()), seen, expected, limit,
                            ulps_between(observed.dtype(), seen, legal.stored)};
      only = fixed && !passes ? fmt::format("; only {} is legal there", number(legal.stored)) : "";
    }
    if (!std::isfinite(expected)) continue;
    squared_error += static_cast<long double>(error) * static_cast<long double>(error);
    const double radius = reference::radius(value);
    widest = std::max(widest, radius);
    vacuity.add(legal, expected, limits[at] + storage_error(observed.dtype(), std::abs(expected) + limits[at]), radius);
  }
  const long double squared_truth = vacuity.squared_truth;
  check.relative_error =
      static_cast<double>(std::sqrt(squared_truth > 0.0L ? squared_error / squared_truth : squared_error));
  check.certified = vacuity.largest > 0.0 ? widest / vacuity.largest : 0.0;
  if (check.over_limit > 0) {
    check.verdict = Verdict::kFail;
    check.reason = fmt::format("{} of {} elements beyond their limit; worst {}{}", check.over_limit, check.elements,
                               describe(*check.worst, observed.dtype(), check.error), only);
    return check;
  }
  check.reason = size == 0 ? "nothing was compared" : vacuity.reason(rule);
  check.verdict = check.reason.empty() ? Verdict::kPass : Verdict::kMistrusted;
  return check;
}

Check judge_exact(const Tensor& observed, const Index& expected) {
  if (observed.size() != expected.size()) return wrong_size(observed, expected.size());
  Check check;
  check.elements = check.fixed = observed.size();
  const bool real = is_real(observed.dtype());
  for (std::int64_t i = 0; i < observed.size(); ++i) {
    const double seen = observed.real(i);
    // Doubles of 2^63 and beyond are no int64; below, the cast of an integral double is exact.
    const bool equal =
        real ? seen == std::trunc(seen) && std::abs(seen) < 0x1p63 && static_cast<std::int64_t>(seen) == expected[i]
             : observed.integer(i) == expected[i];
    if (equal || check.over_limit++ > 0) continue;
    const std::string text = real ? fmt::format("{}", seen) : fmt::format("{}", observed.integer(i));
    note_wrong(check, observed, i, static_cast<double>(expected[i]), text, fmt::format("{}", expected[i]));
  }
  const bool zeros = std::all_of(expected.data.begin(), expected.data.end(), [](std::int64_t v) { return v == 0; });
  return concluded(std::move(check), zeros);
}

Check judge_bits(const Tensor& observed, const Tensor& expected, const SpecialValues& special) {
  Check check;
  check.elements = check.fixed = expected.size();
  if (observed.dtype() != expected.dtype() || observed.shape() != expected.shape()) {
    check.verdict = Verdict::kFail;
    check.reason = fmt::format("recorded {} {}, expected {} {}", name_of(observed.dtype()), to_string(observed.shape()),
                               name_of(expected.dtype()), to_string(expected.shape()));
    return check;
  }
  const auto width = static_cast<std::size_t>(size_of(expected.dtype()));
  const auto text = [width](const Tensor& tensor, std::int64_t i) {
    std::string digits;
    for (std::size_t byte = width; byte-- > 0;)
      digits += fmt::format("{:02x}", std::to_integer<int>(tensor.bytes()[static_cast<std::size_t>(i) * width + byte]));
    return fmt::format("code 0x{} ({})", digits, tensor.real(i));
  };
  bool zeros = true;
  for (std::int64_t i = 0; i < expected.size(); ++i) {
    const auto mine = expected.bytes().subspan(static_cast<std::size_t>(i) * width, width);
    const auto theirs = observed.bytes().subspan(static_cast<std::size_t>(i) * width, width);
    zeros = zeros && std::all_of(mine.begin(), mine.end(), [](std::byte b) { return b == std::byte{0}; });
    const bool nan = is_real(expected.dtype()) && std::isnan(observed.real(i)) && !special.nan_expected;
    if ((std::equal(mine.begin(), mine.end(), theirs.begin()) && !nan) || check.over_limit++ > 0) continue;
    note_wrong(check, observed, i, expected.real(i), text(observed, i), text(expected, i));
  }
  return concluded(std::move(check), zeros);
}

template <class T>
Check judge_choice(const Tensor& observed, const Decision<T>& decision, const std::vector<double>& score_limits,
                   Index* adopted) {
  if (is_real(observed.dtype()))
    throw InputError("recorded choices", std::string(name_of(observed.dtype())), "integers are needed");
  const std::int64_t rows = decision.chosen.dim(0);
  Check check;
  check.is_set = true;
  check.elements = rows;
  if (rows == 0 ? observed.size() > 0 : observed.size() % rows != 0) {
    check.verdict = Verdict::kFail;
    check.reason = fmt::format("recorded shape {}, {} rows are needed", to_string(observed.shape()), rows);
    return check;
  }
  const std::int64_t width = rows == 0 ? 0 : observed.size() / rows;
  const Index seen({rows, width}, observed.integers());
  std::string first_unexplained;
  std::vector<std::int64_t> tied_rows, margin_rows, unexplained_rows;
  std::int64_t rows_with_choice = 0, rows_excused = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::set<std::int64_t> mine = row_set(decision.chosen, r), theirs = row_set(seen, r);
    if (std::isfinite(decision.margin[static_cast<std::size_t>(r)])) {
      ++rows_with_choice;
      if (!score_limits.empty() && excuses_everything(decision, score_limits, r)) ++rows_excused;
    }
    const bool twice = repeats(seen, r, theirs);
    const bool below = std::any_of(seen.row(r, width), seen.row(r, width) + width, [](auto id) { return id < -1; });
    if (mine == theirs && !twice && !below) {
      ++check.rows_equal;
      continue;
    }
    const auto gained = candidates_of(decision, r, difference(theirs, mine));  // only they chose these
    const auto lost = candidates_of(decision, r, difference(mine, theirs));    // only the reference did
    const std::vector<std::int64_t>& tied = decision.tied[static_cast<std::size_t>(r)];
    const auto in_tie = [&](std::int64_t c) { return std::find(tied.begin(), tied.end(), c) != tied.end(); };
    const bool legal = !twice && !below && mine.size() == theirs.size() && gained && lost;
    if (legal && std::all_of(gained->begin(), gained->end(), in_tie) &&
        std::all_of(lost->begin(), lost->end(), in_tie)) {
      tied_rows.push_back(r);
      if (!adopted) continue;
      ASSAY_CHECK(adopted->dim(1) >= static_cast<std::int64_t>(theirs.size()));
      std::int64_t* ids = adopted->row(r, adopted->dim(1));
      std::fill_n(ids, adopted->dim(1), -1);
      std::copy_if(seen.row(r, width), seen.row(r, width) + width, ids, [](auto id) { return id >= 0; });
    } else if (legal && explained_by_margin(decision, score_limits, r, *gained, *lost)) {
      margin_rows.push_back(r);
    } else {
      unexplained_rows.push_back(r);
      if (!first_unexplained.empty()) continue;
      first_unexplained =
          fmt::format("row {}: chose {{{}}}{}{}, the reference {{{}}}, margin {:.3g}", r, fmt::join(theirs, ", "),
                      twice ? " (some twice)" : "", below ? " (and ids below -1)" : "", fmt::join(mine, ", "),
                      decision.margin[static_cast<std::size_t>(r)]);
    }
  }
  check.rows_tied = std::ssize(tied_rows);
  check.rows_by_margin = std::ssize(margin_rows);
  check.rows_unexplained = check.over_limit = std::ssize(unexplained_rows);
  check.relative_error = rows == 0 ? 0.0 : 1.0 - static_cast<double>(check.rows_equal) / static_cast<double>(rows);
  if (check.rows_unexplained > 0) {
    check.verdict = Verdict::kFail;
    check.reason = fmt::format("{} of {} rows differ without a tie or a margin that explains it ({}); {}",
                               check.rows_unexplained, rows, name_rows(unexplained_rows), first_unexplained);
  } else if (rows == 0 || rows_with_choice == 0) {
    check.verdict = Verdict::kMistrusted;
    check.reason = rows == 0 ? "nothing was compared" : "every row selects everything it may see";
  } else if (check.rows_by_margin > 0 && rows_excused == rows_with_choice) {
    check.verdict = Verdict::kMistrusted;
    check.reason = fmt::format(
        "the score limits are as large as the differences of the scores: any choice would have "
        "passed; {} {} by margin",
        name_rows(margin_rows), margin_rows.size() == 1 ? "differs" : "differ");
  } else {
    check.verdict = Verdict::kPass;
    if (!tied_rows.empty())
      check.reason = name_rows(tied_rows) + (tied_rows.size() == 1 ? " ties" : " tie") + " at the threshold";
    if (!margin_rows.empty()) {
      check.reason += (check.reason.empty() ? "" : "; ") + name_rows(margin_rows) +
                      (margin_rows.size() == 1 ? " differs" : " differ") + " within the margin of the scores";
    }
  }
  return check;
}

#define ASSAY_INSTANTIATE(T)                           \
  template Truth truth_of(const reference::Array<T>&); \
  template Check judge_choice(const Tensor&, const Decision<T>&, const std::vector<double>&, Index*);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::harness
