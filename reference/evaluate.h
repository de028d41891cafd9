// The truth of an op call: given its actual inputs, what its outputs must be.
#pragma once

#include "reference/call.h"

namespace assay::reference {

/// Evaluates the op's formula in scalar T under context(). With T = Bound the radius of an output is the error that an
/// implementation may make under context().rounding. Throws InputError if the call asks for something the op does not
/// define.
template <class T>
Results<T> evaluate(const OpCall& call);

/// The same with some real operands replaced by values of scalar T.
template <class T>
Results<T> evaluate(const OpCall& call, const std::map<std::string, Array<T>>& replaced);

/// As evaluate<Ball>, with the precision doubled from context().bits until every decision is certain or a tie at the
/// cap.
Results<Ball> evaluate_certain(const OpCall& call);

}  // namespace assay::reference
