// The delta rule's state and its adjoint by value columns, for every scalar: plain values for double, Real and Sampled;
// for Ball and Bound points with one bound E on the 2-norm of each column's error. Why, and what each E covers, is
// derived above delta_rule_backward.cpp.
#pragma once

#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/array.h"

namespace assay::reference {

/// An upper bound: nonnegative, every operation rounds up, the exponent does not underflow (Arb's mag_t).
class Upper {
 public:
  explicit Upper(double value = 0.0) {
    mag_init(value_);
    mag_set_d(value_, value);
  }
  Upper(const Upper& other) : Upper() { mag_set(value_, other.value_); }
  Upper& operator=(const Upper& other) {
    mag_set(value_, other.value_);
    return *this;
  }
  ~Upper() { mag_clear(value_); }

  mag_struct* data() { return value_; }
  const mag_struct* data() const { return value_; }
  Upper& operator+=(const Upper& b) {
    mag_add(value_, value_, b.value_);
    return *this;
  }
  Upper& operator*=(const Upper& b) {
    mag_mul(value_, value_, b.value_);
    return *this;
  }
  void add_square(const Upper& b) { mag_addmul(value_, b.value_, b.value_); }

 private:
  mag_t value_;
};

inline Upper operator+(Upper a, const Upper& b) { return a += b; }
inline Upper operator*(Upper a, const Upper& b) { return a *= b; }
inline Upper larger(const Upper& a, const Upper& b) { return mag_cmp(a.data(), b.data()) < 0 ? b : a; }
inline Upper root(Upper a) {
  mag_sqrt(a.data(), a.data());
  return a;
}

inline Upper magnitude(const Ball& x) {
  Upper result;
  arb_get_mag(result.data(), x.data());
  return result;
}
inline Upper magnitude(const Bound& x) { return Upper(std::abs(x.v)) + Upper(x.e); }

/// Takes the radius off x.
inline Upper take_radius(Ball& x) {
  Upper result;
  mag_swap(result.data(), arb_radref(x.data()));
  return result;
}
inline Upper take_radius(Bound& x) { return Upper(std::exchange(x.e, 0.0)); }

inline Ball widened(Ball x, const Upper& error) {
  arb_add_error_mag(x.data(), error.data());
  return x;
}
inline Bound widened(const Bound& x, const Upper& error) {
  const Upper sum = Upper(x.e) + error;
  return {x.v, mag_get_d(sum.data())};
}

/// gamma_n = n u / (1 - n u): what n roundings of an implementation may do to a term; a Ball follows the exact formula.
template <class T>
Upper gamma_of(std::int64_t n) {
  if constexpr (!std::is_same_v<T, Bound>) return Upper();
  const double nu = static_cast<double>(n) * context().rounding.compute;
  return Upper(nu < 1.0 ? nu / (1.0 - nu) * (1.0 + 0x1p-40) : HUGE_VAL);
}

template <class T>
inline constexpr bool kHasErrorNorms = std::is_same_v<T, Ball> || std::is_same_v<T, Bound>;

/// The norm of x [n]; 0 for the scalars without errors.
template <class T>
Upper norm_of(const T* x, std::int64_t n) {
  Upper sum;
  if constexpr (kHasErrorNorms<T>) {
    for (std::int64_t i = 0; i < n; ++i) sum.add_square(magnitude(x[i]));
  }
  return root(sum);
}

/// A matrix [K, V] as V columns of K values.
template <class T>
class Columns {
 public:
  /// `matrix` is row-major [K, V]; null means zero.
  Columns(std::int64_t K, std::int64_t V, const T* matrix)
      : K_(K), values_({V, K}), errors_(kHasErrorNorms<T> ? static_cast<std::size_t>(V) : 0) {
    for (std::int64_t e = 0; matrix != nullptr && e < V; ++e) {
      for (std::int64_t d = 0; d < K; ++d) values_.at(e, d) = matrix[d * V + e];
      settle(e, Upper());
    }
  }
  /// The points of column e.
  T* column(std::int64_t e) { return values_.row(e, K_); }
  const T* column(std::int64_t e) const { return values_.row(e, K_); }
  /// After column e went, in place on its points, through an affine map whose linear part has norm `growth`: its error
  /// becomes growth E + |radii|, its elements points again.
  void settle(std::int64_t e, const Upper& growth) {
    if constexpr (kHasErrorNorms<T>) {
      Upper radii;
      for (std::int64_t d = 0; d < K_; ++d) radii.add_square(take_radius(values_.at(e, d)));
      Upper& error = errors_[static_cast<std::size_t>(e)];
      error = growth * error + root(radii);
    }
  }
  /// Element (d, e) with its error.
  T element(std::int64_t d, std::int64_t e) const { return with_error(values_.at(e, d), e, Upper(1.0)); }
  /// `product` of the points of column e with a vector of norm at most `norm`, with the column's error.
  T with_error(const T& product, std::int64_t e, const Upper& norm) const {
    if constexpr (kHasErrorNorms<T>) return widened(product, norm * errors_[static_cast<std::size_t>(e)]);
    return product;
  }
  /// Row d, with errors.
  std::vector<T> row(std::int64_t d) const {
    std::vector<T> result;
    for (std::int64_t e = 0; e < values_.dim(0); ++e) result.push_back(element(d, e));
    return result;
  }

 private:
  std::int64_t K_;
  Array<T> values_;
  std::vector<Upper> errors_;
};

}  // namespace assay::reference
