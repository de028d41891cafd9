#include "reference/context.h"

#include "reference/real.h"

namespace assay::reference {

Context& context() {
  thread_local Context current;
  return current;
}

PointFormat format_at(Point point) {
  const RoundingModel& model = context().rounding;
  if (model.points) return model.points->points[point.index];
  switch (kRoundingPoints[point.index].unspecified) {
    case Unspecified::kActivation:
      return {model.activation, nullptr};
    case Unspecified::kCompute:
      return {model.compute, nullptr};
    case Unspecified::kNone:
      break;
  }
  return {};
}

ContextScope::ContextScope(const Context& replacement) : saved_(context()), saved_digits_(real_digits()) {
  context() = replacement;
  const unsigned digits = decimal_digits(replacement.bits);
  if (digits != saved_digits_) set_real_digits(digits);
}

ContextScope::~ContextScope() {
  const unsigned digits = decimal_digits(context().bits);
  context() = saved_;
  if (digits != saved_digits_) set_real_digits(saved_digits_);
}

}  // namespace assay::reference
