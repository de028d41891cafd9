// Certified decimal digits of a ball.
#pragma once

#include <optional>
#include <string>

#include "reference/ball.h"

namespace assay::harness {

/// The value rounded to `digits` significant decimal digits (to nearest, ties to even), if every number of the ball
/// rounds to the same ones; nullopt if not. A point that has no more digits than asked is written out exactly and
/// short ("0.5"); "inf", "-inf" and "nan" are points too. Large and small values are written "1.25e-30".
std::optional<std::string> to_decimal(const reference::Ball& x, int digits);

}  // namespace assay::harness
