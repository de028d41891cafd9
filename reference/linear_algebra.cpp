#include "reference/linear_algebra.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "reference/linear_algebra_kernel.h"
#include "reference/linear_algebra_radii.h"
#include "reference/linear_algebra_residues.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// Guard bits that make the final rounding of a Real product the dominant one.
constexpr int kGuardBits = 32;
/// How far the precision of a sum that cancels is raised: the factor over y's precision.
constexpr int kMostFactor = 16;
/// Errors of a Real before its last rounding are below 2^-7 units of its last place.
constexpr int kErrorBits = 7;

constexpr std::int64_t kLeastPacked = 3;

/// An array seen as a matrix.
template <class T>
struct Rows {
  const T* data;
  std::int64_t count;
};

std::vector<Ball> to_balls(const Real* x, std::int64_t n) {
  std::vector<Ball> balls(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) balls[static_cast<std::size_t>(i)] = to_ball(x[i]);
  return balls;
}

/// y = the dot of two exact rows, rounded to y's precision, computed in as many bits as that takes.
void dot_of_points(const Ball* a, const Ball* b, std::int64_t n, Real& y) {
  const int wanted = static_cast<int>(mpfr_get_prec(y.backend().data()));
  for (int bits = wanted + kGuardBits;; bits *= 2) {
    const BallBits wider(bits);
    const Ball sum = dot(a, 1, b, 1, n);
    if (bits <= wanted * kMostFactor / 2 && arb_is_finite(sum.data()) &&
        arb_rel_accuracy_bits(sum.data()) < wanted + kErrorBits)
      continue;
    arf_get_mpfr(y.backend().data(), arb_midref(sum.data()), MPFR_RNDN);
    return;
  }
}

/// Products of points in fixed point; false if the operands do not allow it.
bool fixed_point_product(Rows<Real> x, Rows<Real> w, std::int64_t inner, Real* y) {
  if (std::min({x.count, w.count, inner}) < kLeastOfReals) return false;
  const int bits = static_cast<int>(mpfr_get_prec(y->backend().data()));
  const int most = fixed_point_width(bits, inner);
  const FixedPoint<Real> left(x.data, x.count, inner, most), right(w.data, w.count, inner, most);
  if (!left.usable || !right.usable || !residues_suffice(left.width, right.width, inner)) return false;
  residue_product<Real>(left, right, bits, [&](std::int64_t i, std::int64_t j, const FixedSum& sum) {
    Real& entry = y[i * w.count + j];
    const mpfr_ptr value = entry.backend().data();
    mpz_t integer;
    mpfr_set_z_2exp(value, mpz_roinit_n(integer, sum.limbs, sum.negative ? -sum.size : sum.size), sum.exponent,
                    MPFR_RNDN);
    if (sum.exact) return;
    if (sum.size > 0 && sum.error_exponent <= mpfr_get_exp(value) - bits - kErrorBits - 1) return;
    dot_of_points(to_balls(x.data + i * inner, inner).data(), to_balls(w.data + j * inner, inner).data(), inner, entry);
  });
  return true;
}

bool fixed_point_product(Rows<Ball> x, Rows<Ball> w, std::int64_t inner, Ball* y) {
  if (std::min({x.count, w.count, inner}) < kLeastOfBalls) return false;
  const int bits = context().bits, most = fixed_point_width(bits, inner);
  const FixedPoint<Ball> left(x.data, x.count, inner, most), right(w.data, w.count, inner, most);
  if (!left.usable || !right.usable || !residues_suffice(left.width, right.width, inner)) return false;
  const Magnitudes left_sizes(left), right_sizes(right);
  if (!left_sizes.usable || !right_sizes.usable) return false;
  const PropagatedRadii radii(left_sizes, right_sizes, inner);
  residue_product<Ball>(left, right, bits, [&](std::int64_t i, std::int64_t j, const FixedSum& sum) {
    arb_ptr entry = y[i * w.count + j].data();
    if (sum.size == 0) {
      arf_zero(arb_midref(entry));
    } else {
      arf_set_mpn(arb_midref(entry), sum.limbs, sum.size, sum.negative);
      arf_mul_2exp_si(arb_midref(entry), arb_midref(entry), sum.exponent);
    }
    radii.get(arb_radref(entry), i, j);
    if (!sum.exact) {
      const bool certain = sum.size > 0 && sum.error_exponent <= ARF_EXP(arb_midref(entry)) - bits;
      if (!certain && mag_cmp_2exp_si(arb_radref(entry), sum.error_exponent) < 0) {
        y[i * w.count + j] = dot(x.data + i * inner, 1, w.data + j * inner, 1, inner);
        return;
      }
      arb_add_error_2exp_si(entry, sum.error_exponent);
    }
    arb_set_round(entry, entry, bits);
  });
  return true;
}

void product(Rows<Real> x, Rows<Real> w, std::int64_t inner, Real* y) {
  if (fixed_point_product(x, w, inner, y)) return;
  const std::vector<Ball> left = to_balls(x.data, x.count * inner), right = to_balls(w.data, w.count * inner);
  parallel_for(x.count, [&](std::int64_t i) {
    for (std::int64_t j = 0; j < w.count; ++j)
      dot_of_points(left.data() + i * inner, right.data() + j * inner, inner, y[i * w.count + j]);
  });
}

/// Entry by entry, for every scalar.
template <class T>
void product_of_dots(Rows<T> x, Rows<T> w, std::int64_t inner, T* y) {
  parallel_for(x.count, [&](std::int64_t i) {
    for (std::int64_t j = 0; j < w.count; ++j)
      y[i * w.count + j] = dot(x.data + i * inner, 1, w.data + j * inner, 1, inner);
  });
}

void product(Rows<Ball> x, Rows<Ball> w, std::int64_t inner, Ball* y) {
  if (!fixed_point_product(x, w, inner, y)) product_of_dots(x, w, inner, y);
}

void product(Rows<double> x, Rows<double> w, std::int64_t inner, double* y) {
  // Packing does not pay for a few rows; the bits are the same.
  if (x.count < kLeastPacked) return product_of_dots(x, w, inner, y);
  plain_product(x.data, x.count, w.data, w.count, inner, y);
}

/// Value, magnitude and error of an array of Bound.
struct Parts {
  std::vector<double> values, sizes, errors;
  bool has_errors = false;
  Parts(const Bound* x, std::int64_t n) : values(static_cast<std::size_t>(n)), sizes(values), errors(values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = x[i].v;
      sizes[i] = std::abs(x[i].v);
      errors[i] = x[i].e;
      if (x[i].e != 0.0) has_errors = true;
    }
  }
};

/// The terms of dot(Bound), each a product of doubles.
void product(Rows<Bound> x, Rows<Bound> w, std::int64_t inner, Bound* y) {
  const Parts left(x.data, x.count * inner);
  Parts right(w.data, w.count * inner);
  const auto size = static_cast<std::size_t>(x.count * w.count);
  std::vector<double> values(size), magnitudes(size), propagated(size, 0.0), part(size);
  const auto multiply = [&](const std::vector<double>& a, const std::vector<double>& b, std::vector<double>& c) {
    plain_product(a.data(), x.count, b.data(), w.count, inner, c.data());
  };
  multiply(left.values, right.values, values);
  multiply(left.sizes, right.sizes, magnitudes);
  if (right.has_errors) multiply(left.sizes, right.errors, propagated);
  if (left.has_errors) {
    for (std::size_t i = 0; i < right.sizes.size(); ++i) right.sizes[i] += right.errors[i];
    multiply(left.errors, right.sizes, part);
    for (std::size_t i = 0; i < size; ++i) propagated[i] += part[i];
  }
  const double n = static_cast<double>(inner);
  const RoundingModel model = context().rounding;
  // (1 + u)^d - 1 <= d u (1 + 2^-10), and this function's own sums: n + 4 roundings, then a few more.
  const double roundings = static_cast<double>(model.tree.depth(inner) + 1) * model.compute * (1.0 + 0x1p-10);
  const double inflation = (1.0 + 0x1p-40) * (1.0 + (n + 4.0) * 0x1p-52);
  for (std::size_t i = 0; i < size; ++i)
    y[i] = {values[i],
            (propagated[i] + roundings * (magnitudes[i] + propagated[i]) + n * (0x1p-53 * magnitudes[i] + model.tiny)) *
                inflation};
}

void product(Rows<Sampled> x, Rows<Sampled> w, std::int64_t inner, Sampled* y) { product_of_dots(x, w, inner, y); }

}  // namespace

template <class T>
Array<T> matmul_nt(const Array<T>& x, const Array<T>& w) {
  const std::int64_t inner = w.dim(1), columns = w.dim(0);
  ASSAY_CHECK(x.dim(-1) == inner);
  const std::int64_t rows = inner == 0 ? element_count(Shape(x.shape.begin(), x.shape.end() - 1)) : x.size() / inner;
  Shape shape = x.shape;
  shape.back() = columns;
  Array<T> y(shape);
  if (y.size() > 0) product(Rows<T>{x.data.data(), rows}, Rows<T>{w.data.data(), columns}, inner, y.data.data());
  return y;
}

#define ASSAY_INSTANTIATE(T) template Array<T> matmul_nt(const Array<T>&, const Array<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
