// Comparators: recorded values against the truth and their limits, recorded choices against the reference's, integers
// and codes against what they must be.
//
// The stored-value rule. An implementation that holds a value within e of the truth v and stores it once, rounding to
// nearest even, has stored a value in [RN(v - e), RN(v + e)], because rounding is monotone: exactly these values pass.
// The ends are taken outwards over the truth's ball. RN is the rounding of the recorded dtype; F64 has no single
// rounding (its sums are kept in it too), there the ends are rounded outwards to doubles; integers are what lies in
// [v - e, v + e]. The limit of an element is the distance of the farther end from v, its share the error over the
// limit: share <= 1 if and only if it passes (a value beyond the nearer end alone is measured by that end). An element
// with exactly one legal stored value is *fixed*: nothing but that value passes.
//
// Special values, the same everywhere unless a case declares otherwise (SpecialValues):
//   NaN        fails on either side, also against NaN.
//   infinity   passes only if the truth is the same infinity, or if the truth itself rounds to it; a limit alone never
//              reaches it. Where the truth is infinite, nothing else passes.
//   overflow   a truth beyond the largest finite value becomes infinity; a format without infinity stores NaN for it,
//              which must be declared. The largest finite value passes for it if some value within e rounds to a
//              finite one, or if saturation is declared.
//   zeros      +0 equals -0.
//   subnormals are compared like any other value.
//   UE8M0      has no code for 0 and below: values within e of v count only if they are positive.
// A limit that is NaN, and a truth of which nothing is known, let nothing pass.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cases/formats.h"
#include "harness/result.h"
#include "reference/array.h"
#include "reference/model/observer.h"

namespace assay::harness {

/// The truth of a tensor as the comparators need it.
struct Truth {
  std::vector<reference::Ball> values;    ///< exact points where the reference is not certified
  std::vector<bool> negative_zeros = {};  ///< where a zero is -0, which a ball cannot hold; empty: every zero is +0
};
template <class T>
Truth truth_of(const reference::Array<T>& values);

/// What a case declares about special values.
struct SpecialValues {
  bool nan_expected = false;   ///< NaN passes where the truth is NaN or its format can only store it as NaN
  bool signed_zeros = false;   ///< -0 lies below +0: the sign of a zero counts
  bool flush_to_zero = false;  ///< 0 of any sign passes where |v| is below the format's smallest normal number
  Overflow overflow = Overflow::kSpecial;  ///< kSaturate: beyond the largest finite value, that value is stored
};

/// The non-negative ids of one row: choices are compared as sets.
std::set<std::int64_t> row_set(const reference::Index& ids, std::int64_t row);

/// The most that storing any value up to `value` in a dtype may cost: half a unit in the last place, or half the
/// smallest subnormal. For limits of whole tensors; elements follow the stored-value rule.
double storage_error(DType dtype, double value);

/// Steps between two values of a real dtype, 0 for equal ones (+0 equals -0); nothing for integers and special values.
std::optional<std::int64_t> ulps_between(DType dtype, double a, double b);

/// Fills a check's numbers and verdict from observed values, truth and limits of the same size. `limits` are the errors
/// e that an implementation may make before it stores the value. Observed of another size: FAIL.
/// MISTRUSTED, each with its reason, if nothing failed but the check could not have failed: nothing compared, no finite
/// truth, a truth of zeros only, limits so wide that zeros or the truth's mean would have passed everywhere (the latter
/// unless the truth as stored is one value), or a truth that is itself less certain than its limits.
Check judge_values(const Tensor& observed, const Truth& truth, const std::vector<double>& limits,
                   const SpecialValues& special = {});

/// Integers (ids, counts) that have one right value each. Observed may be real: 3.0 is 3.
/// MISTRUSTED: nothing compared, or zeros would have passed.
Check judge_exact(const Tensor& observed, const reference::Index& expected);

/// Codes: the same dtype, shape and bits. -0 is not +0; NaN fails unless declared. MISTRUSTED as judge_exact.
Check judge_bits(const Tensor& observed, const Tensor& expected, const SpecialValues& special = {});

/// Observed choices (rows of ids, -1 = none, anywhere in a row) against the reference's decision, as sets. A row that
/// differs is
///   tied        if observed and chosen differ only in candidates that are equal at the threshold,
///   by margin   if the scores of what differs lie within `score_limits` of each other (empty: no such excuse),
///   unexplained otherwise; always if it has another number of ids, an id twice, below -1 or of no candidate, or part
///               of a pool.
/// MISTRUSTED if no row had a choice (everything visible was selected everywhere), or if rows differ by margin while
/// the score limits would have excused any choice in every row. `adopted` receives the observed choice in tied rows
/// (ids in their order, -1 behind them) and the reference's everywhere else. Throws InputError for a real dtype; a size
/// that is no multiple of the rows: FAIL.
template <class T>
Check judge_choice(const Tensor& observed, const reference::Decision<T>& decision,
                   const std::vector<double>& score_limits, reference::Index* adopted);

}  // namespace assay::harness
