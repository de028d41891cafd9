// Judging a large op by a part of its outputs (design section 2): operands are sliced along the symbols in which the
// elements of an output are independent (cases/ops/slices.h), which gives a smaller call of the same op. Its outputs
// are exactly the chosen elements of the whole call's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cases/ops/slices.h"
#include "harness/operand_source.h"

namespace assay::harness {

/// Work is counted in elements that are read or written, once for every independent part of the output: for a matrix
/// product 2 (K + 1) per entry, twice its multiply-adds.
struct SampleBudget {
  double work = 1e7;  ///< calls up to this are judged whole, samples of others are as large as this allows
  std::uint64_t seed = 1;
};

struct SamplePlan {
  std::string op;
  std::string output;
  std::uint64_t seed = 1;
  bool whole = true;
  /// Chosen indices of each sliced symbol, ascending; "..." are rows of the leading dimensions; of a symbol in blocks
  /// the numbers of the blocks.
  std::map<std::string, std::vector<std::int64_t>> indices;
  std::map<std::string, std::int64_t> sizes;  ///< how many indices there are of each
  double fraction = 1.0;                      ///< chosen outputs / all outputs
};

/// "linear y: sample, seed 1, fraction 7.9e-06 of the outputs: 20 of 4096 rows, 20 of 12288 N", or "linear y: whole".
std::string to_string(const SamplePlan& plan);

/// The whole call with operands that have only dtypes and shapes (their elements read as zero and take no memory).
/// Throws InputError like make_call.
OpCall shapes_of(const OpSpec& spec, const nlohmann::json& attributes, const Sources& sources, std::string path = "");

/// Chooses per symbol the same number of indices, as many as the budget allows: the first, the last, indices at tile
/// edges (multiples of 64 and their neighbours), the rest at random, one in each of equal strata. Depends on shapes,
/// budget and seed only. `whole` (shapes_of, or a call with its operands). Throws InputError for an unknown output or a
/// budget that is not positive.
SamplePlan plan_sample(const OpCall& whole, const std::string& output, const SampleBudget& budget = {});

/// Adds the indices of the `count` largest magnitudes of a candidate's output (what is not finite counts as largest).
void add_largest(SamplePlan& plan, const OpCall& whole, const Tensor& candidate, std::int64_t count);

struct SampledCall {
  OpCall call;  ///< the sub-call: its output `output` has the chosen elements in order, its other outputs mean nothing
  std::string output;
  std::uint64_t seed = 1;
  bool whole = true;
  Selection selection;                       ///< what was chosen, companions included
  std::map<std::string, std::int64_t> dims;  ///< of the whole call
};

/// Slices the operands; only what the sub-call needs is read from `sources`. Throws InputError for a plan of another
/// op, indices that do not exist, or operands that do not fit.
SampledCall make_sampled_call(const OpCall& whole, const Sources& sources, const SamplePlan& plan);

/// Flat places in the whole output, of this shape, of the sub-call's output elements, in their order.
std::vector<std::int64_t> sampled_elements(const SampledCall& sampled, const Shape& whole_output);

/// The chosen elements of the whole output (an observed one), in the shape of the sub-call's output.
Tensor gather_output(const Tensor& whole_output, const SampledCall& sampled);

struct Coverage {
  std::int64_t chosen = 0;
  std::int64_t all = 0;
  double fraction = 1.0;
  std::uint64_t seed = 1;
};

Coverage coverage_of(const SampledCall& sampled, const Shape& whole_output);

}  // namespace assay::harness
