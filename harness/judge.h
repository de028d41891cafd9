// Comparators: recorded values against the truth and their limits, recorded choices against the reference's.
//
// Rules for special values (the same everywhere): a NaN on either side is a failure; an infinity passes only if the
// truth is the same infinity; +0 equals -0; subnormals are compared like any other value.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "harness/result.h"
#include "reference/array.h"
#include "reference/model/observer.h"

namespace assay::harness {

/// The truth of a tensor as the comparators need it.
struct Truth {
  std::vector<reference::Ball> values;  ///< exact points where the reference is not certified
};
template <class T>
Truth truth_of(const reference::Array<T>& values);

/// The non-negative ids of one row: choices are compared as sets.
std::set<std::int64_t> row_set(const reference::Index& ids, std::int64_t row);

/// What storing `value` in a dtype may cost: half a unit in the last place, or half the smallest subnormal.
double storage_error(DType dtype, double value);

/// Fills a check's numbers and verdict from observed values, truth and limits of the same size. `limits` are the errors
/// that an implementation may make before it stores the value; the storage error of the recorded dtype is added here.
/// MISTRUSTED: nothing compared, a truth of zeros only, or limits so wide that zeros would have passed too.
Check judge_values(const Tensor& observed, const Truth& truth, const std::vector<double>& limits);

/// Observed choices (rows of ids, -1 = none) against the reference's decision, as sets. A row that differs is
///   tied        if observed and chosen differ only in candidates that are equal at the threshold,
///   by margin   if the scores of what differs lie within `score_limits` of each other (empty: no such excuse),
///   unexplained otherwise.
/// MISTRUSTED if no row had a choice (everything visible was selected everywhere). `adopted` receives the observed
/// choice in tied rows and the reference's everywhere else.
template <class T>
Check judge_choice(const Tensor& observed, const reference::Decision<T>& decision,
                   const std::vector<double>& score_limits, reference::Index* adopted);

}  // namespace assay::harness
