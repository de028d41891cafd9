#include "reference/scalar.h"

namespace assay::reference {

Ball to_ball(const Real& x) {
  Ball result;
  arf_set_mpfr(arb_midref(result.data()), x.backend().data());
  return result;
}

}  // namespace assay::reference
