// What the backward formulas share: cotangents of outputs may be absent.
#pragma once

#include "reference/array.h"

namespace assay::reference {

/// The cotangent of an output of shape `shape`; an empty one means zero. Throws InputError naming `operand` for any
/// other shape.
template <class T>
Array<T> cotangent_or_zero(const Array<T>& cotangent, const Shape& shape, const char* operand) {
  if (cotangent.size() == 0) return Array<T>(shape);
  if (cotangent.shape != shape)
    throw InputError(operand, "shape " + assay::to_string(cotangent.shape),
                     "the shape of the output, " + assay::to_string(shape));
  return cotangent;
}

}  // namespace assay::reference
