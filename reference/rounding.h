// A contract as the scalars read it.
#pragma once

#include "cases/contract.h"
#include "reference/context.h"

namespace assay::reference {

/// Sums in F32 (F64 where the activation dtype is F64: every format of the contract that is wider than the activations
/// is lifted with them), points as the contract says.
RoundingModel rounding_model(const Contract& contract);

/// What is known where only dtypes are recorded: sums in F32, every point at the activation dtype (F64: all in F64).
RoundingModel recorded_rounding(DType activation);

/// The same without the roundings with which the op stores its outputs in `dtype`: what is left is the error of the
/// values before the store.
RoundingModel before_store(const RoundingModel& model, std::string_view op, DType dtype);

/// The tree of the op's sums under this thread's model, for the time of a call.
class OpRounding {
 public:
  explicit OpRounding(const std::string& op);
  ~OpRounding() { context().rounding.tree = saved_; }
  OpRounding(const OpRounding&) = delete;
  OpRounding& operator=(const OpRounding&) = delete;

 private:
  SumTree saved_;
};

}  // namespace assay::reference
