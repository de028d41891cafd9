// The radius part of a product of ball matrices.
#pragma once

#include "reference/linear_algebra_residues.h"

namespace assay::reference {

/// Upper bounds of |midpoint| and radius, scaled per row: |x[i, k]| <= middles * 2^middle_exponents[i] and so on.
struct Magnitudes {
  std::vector<double> middles, radii;  ///< [rows, inner] in [0, 1]
  std::vector<std::int64_t> middle_exponents, radius_exponents;
  bool has_radii = false;
  bool usable = true;  ///< no infinite radius and no exponent of more than 40 bits

  explicit Magnitudes(const FixedPoint<Ball>& operand);
};

/// sum_k |x| r_w + r_x |w| + r_x r_w, rounded upwards, for all entries of a product.
class PropagatedRadii {
 public:
  PropagatedRadii(const Magnitudes& x, const Magnitudes& w, std::int64_t inner);
  void get(mag_ptr radius, std::int64_t i, std::int64_t j) const;

 private:
  struct Part {
    const std::vector<std::int64_t>*row_exponents, *column_exponents;
    std::vector<double> sums;  ///< [rows, columns]
  };
  std::int64_t columns_;
  std::vector<Part> parts_;
};

}  // namespace assay::reference
