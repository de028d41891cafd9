#include "reference/scalar.h"

#include "reference/round_once.h"

namespace assay::reference {
namespace {

template <class T>
T executed(Point point, const T& x) {
  if (!context().execute) return x;
  const PointFormat rounding = format_at(point);
  if (rounding.format == nullptr) return x;  // not rounded, or F64: exact
  return rounded_to(*rounding.format, x, Overflow::kSpecial);
}

}  // namespace

double round_at(Point point, double x) { return executed(point, x); }
Real round_at(Point point, const Real& x) { return executed(point, x); }
Ball round_at(Point point, const Ball& x) { return executed(point, x); }

Ball to_ball(const Real& x) {
  Ball result;
  arf_set_mpfr(arb_midref(result.data()), x.backend().data());
  return result;
}

}  // namespace assay::reference
