#include "reference/linear_algebra_radii.h"

#include <algorithm>
#include <cmath>

#include "reference/linear_algebra_kernel.h"

namespace assay::reference {
namespace {

/// Scaled magnitudes below this are raised to it, so that products of two do not underflow.
constexpr int kLeastExponent = -500;
constexpr std::int64_t kLargestExponent = std::int64_t{1} << 40;

/// fraction * 2^exponent, or a little more, for exponent <= 0.
double scaled(double fraction, std::int64_t exponent) {
  return std::ldexp(fraction, static_cast<int>(std::max<std::int64_t>(exponent, kLeastExponent)));
}

}  // namespace

Magnitudes::Magnitudes(const FixedPoint<Ball>& operand)
    : middles(static_cast<std::size_t>(operand.rows * operand.inner)),
      middle_exponents(operand.exponents),
      radius_exponents(static_cast<std::size_t>(operand.rows), 0) {
  const std::int64_t inner = operand.inner;
  for (std::int64_t i = 0; i < operand.rows * inner; ++i) {
    const Mantissa x = mantissa(operand.data[i]);
    if (x.size > 0) {
      const double fraction = std::ldexp(static_cast<double>((x.limbs[x.size - 1] >> 11) + 1), -53);
      middles[static_cast<std::size_t>(i)] =
          scaled(fraction, x.exponent - middle_exponents[static_cast<std::size_t>(i / inner)]);
    }
    const mag_struct* radius = arb_radref(operand.data[i].data());
    if (mag_is_zero(radius)) continue;
    has_radii = true;
    if (mag_is_inf(radius) || COEFF_IS_MPZ(MAG_EXP(radius)) || std::abs(MAG_EXP(radius)) > kLargestExponent)
      usable = false;
  }
  if (!has_radii || !usable) return;
  radii.resize(middles.size());
  for (std::int64_t row = 0; row < operand.rows; ++row) {
    bool any = false;
    std::int64_t& highest = radius_exponents[static_cast<std::size_t>(row)];
    for (std::int64_t k = 0; k < inner; ++k) {
      const mag_struct* radius = arb_radref(operand.data[row * inner + k].data());
      if (mag_is_zero(radius)) continue;
      highest = any ? std::max<std::int64_t>(highest, MAG_EXP(radius)) : MAG_EXP(radius);
      any = true;
    }
    for (std::int64_t k = 0; k < inner; ++k) {
      const mag_struct* radius = arb_radref(operand.data[row * inner + k].data());
      if (mag_is_zero(radius)) continue;
      const double fraction = std::ldexp(static_cast<double>(MAG_MAN(radius)), -MAG_BITS);
      radii[static_cast<std::size_t>(row * inner + k)] = scaled(fraction, MAG_EXP(radius) - highest);
    }
  }
}

PropagatedRadii::PropagatedRadii(const Magnitudes& x, const Magnitudes& w, std::int64_t inner)
    : columns_(static_cast<std::int64_t>(w.middle_exponents.size())) {
  const std::int64_t rows = static_cast<std::int64_t>(x.middle_exponents.size());
  // Sums of inner non-negative terms, each product and each sum off by at most 2^-53 of itself.
  const double inflation = 1.0 + static_cast<double>(inner + 4) * 0x1p-52;
  const auto add = [&](const std::vector<double>& left, const std::vector<std::int64_t>& left_exponents,
                       const std::vector<double>& right, const std::vector<std::int64_t>& right_exponents) {
    Part part{&left_exponents, &right_exponents, std::vector<double>(static_cast<std::size_t>(rows * columns_))};
    plain_product(left.data(), rows, right.data(), columns_, inner, part.sums.data());
    for (double& sum : part.sums) sum *= inflation;
    parts_.push_back(std::move(part));
  };
  if (w.has_radii) add(x.middles, x.middle_exponents, w.radii, w.radius_exponents);
  if (x.has_radii) add(x.radii, x.radius_exponents, w.middles, w.middle_exponents);
  if (x.has_radii && w.has_radii) add(x.radii, x.radius_exponents, w.radii, w.radius_exponents);
}

void PropagatedRadii::get(mag_ptr radius, std::int64_t i, std::int64_t j) const {
  mag_zero(radius);
  mag_t term;
  mag_init(term);
  for (const Part& part : parts_) {
    mag_set_d(term, part.sums[static_cast<std::size_t>(i * columns_ + j)]);
    mag_mul_2exp_si(
        term, term,
        (*part.row_exponents)[static_cast<std::size_t>(i)] + (*part.column_exponents)[static_cast<std::size_t>(j)]);
    mag_add(radius, radius, term);
  }
  mag_clear(term);
}

}  // namespace assay::reference
