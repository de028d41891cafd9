// The truth of an op call in decimal digits, as JSON.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "cases/ops/op.h"

namespace assay::harness {

struct Precision {
  std::string scalar = "ball";  ///< double | real | ball
  int bits = 128;               ///< of real and ball
  int most_bits = 65536;        ///< ball: doubled up to here until the digits are certain
  int digits = 17;
};

/// {"op", "scalar", "bits", "outputs": {name: {"shape", "values"}}, "ties"}: values nested by shape, reals as strings
/// of `digits` digits, rounded once from the truth when the scalar is ball ("[1.25 +/- 3e-9]", the digits that are
/// certain, if most_bits do not suffice: a zero that is not exact), indices as integers. "bits" is the precision that
/// sufficed. "ties" names for each margin output the rows whose margin is exactly 0: the order of equals there is a
/// convention.
nlohmann::ordered_json evaluation_json(const OpCall& call, const Precision& precision);

}  // namespace assay::harness
