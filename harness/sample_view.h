// How the operands and outputs of a call are seen by a sample: shared by planning (sample_plan.cpp) and slicing
// (sample.cpp).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/sample.h"

namespace assay::harness {

using Dims = std::map<std::string, std::int64_t>;
using Places = std::vector<std::int64_t>;

inline constexpr const char* kRows = "...";  ///< the symbol of the leading dimensions

/// An operand or output with the places that a selection takes on each axis; sliced leading dimensions are one axis.
struct View {
  Shape shape;
  AxisPicks picks;
};

/// The output of this name; slice_rule has refused other names.
const OperandSpec& output_spec(const OpCall& call, const std::string& name);

/// Elements of a symbol, "..." included.
std::int64_t extent(const OpCall& call, const std::string& symbol);
/// Elements of a symbol that one index stands for.
std::int64_t block_size(const OpCall& call, const Slice& slice);
/// How many indices there are to choose from.
std::int64_t index_count(const OpCall& call, const Slice& slice);

/// Chosen indices as a selection of elements.
Selection selection_of(const OpCall& call, const SliceRule& rule, const std::map<std::string, Places>& indices);

View view_of(const OperandSpec& operand, const Shape& shape, const Dims& dims, const Selection& selection);

void check_op(const OpCall& whole, const SamplePlan& plan);
/// The rule of a plan that is not whole, with the plan checked against the call.
const SliceRule& checked_rule(const OpCall& whole, const SamplePlan& plan);

}  // namespace assay::harness
