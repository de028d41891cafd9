#include "reference/linear_algebra.h"

#include <random>

#include <gtest/gtest.h>

#include "reference/parallel.h"

namespace assay::reference {
namespace {

Context with_bits(int bits) {
  Context result;
  result.bits = bits;
  return result;
}

template <class T>
Array<T> seeded(Shape shape, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Array<T> result(std::move(shape));
  for (T& value : result.data) value = T(static_cast<double>(random() >> 11) * 0x1p-52 - 1.0);
  return result;
}

/// Values with a full mantissa of the current precision.
Array<Real> seeded_thirds(Shape shape, std::uint64_t seed) {
  Array<Real> result = seeded<Real>(std::move(shape), seed);
  for (Real& value : result.data) value = value / 3;
  return result;
}

TEST(MatmulNt, real_at_256_bits_is_within_one_ulp_of_a_loop_at_512_bits) {
  for (const std::int64_t inner : {1, 2, 17, 300}) {
    const std::int64_t rows = inner == 2 ? 3 : 9, columns = inner == 2 ? 4 : 10;
    Array<Real> x, w, y;
    {
      const ContextScope scope(with_bits(256));
      x = seeded_thirds({rows, inner}, 1);
      w = seeded_thirds({columns, inner}, 2);
      y = matmul_nt(x, w);
    }
    const ContextScope scope(with_bits(512));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        Real sum(0);
        for (std::int64_t k = 0; k < inner; ++k) sum += Real(x.at(i, k), 200U) * Real(w.at(j, k), 200U);
        const Real error = abs(Real(Real(y.at(i, j), 200U) - sum));
        EXPECT_LT(error, ldexp(Real(abs(sum)), -256)) << inner << ": " << i << ", " << j;
      }
  }
}

TEST(MatmulNt, balls_contain_the_real_product) {
  const Array<double> x = seeded<double>({5, 40}, 3), w = seeded<double>({6, 40}, 4);
  const Array<Ball> balls = matmul_nt(seeded<Ball>({5, 40}, 3), seeded<Ball>({6, 40}, 4));
  const Array<Bound> bounds = matmul_nt(seeded<Bound>({5, 40}, 3), seeded<Bound>({6, 40}, 4));
  const Array<double> fast = matmul_nt(x, w);
  const ContextScope scope(with_bits(256));
  const Array<Real> reals = matmul_nt(seeded<Real>({5, 40}, 3), seeded<Real>({6, 40}, 4));
  ASSERT_EQ(balls.shape, (Shape{5, 6}));
  for (std::int64_t i = 0; i < balls.size(); ++i) {
    EXPECT_TRUE(arb_contains(balls[i].data(), to_ball(reals[i]).data())) << i;
    EXPECT_LT(radius(balls[i]), 1e-36);
    EXPECT_LE(std::abs(bounds[i].v - midpoint(reals[i])), bounds[i].e);
    EXPECT_EQ(fast[i], bounds[i].v) << "plain sums in order of k";
  }
}

TEST(MatmulNt, leading_dimensions_are_rows) {
  const Array<double> x = seeded<double>({2, 3, 4}, 5), w = seeded<double>({5, 4}, 6);
  const Array<double> y = matmul_nt(x, w);
  EXPECT_EQ(y.shape, (Shape{2, 3, 5}));
  EXPECT_EQ(y.data, matmul_nt(x.reshaped({6, 4}), w).data);
}

template <class T>
void expect_small_sizes_to_work() {
  EXPECT_EQ(matmul_nt(Array<T>({0, 3}), Array<T>({2, 3})).shape, (Shape{0, 2}));
  EXPECT_EQ(matmul_nt(Array<T>({2, 3}), Array<T>({0, 3})).shape, (Shape{2, 0}));
  const Array<T> empty_sums = matmul_nt(Array<T>({2, 0}), Array<T>({3, 0}));
  ASSERT_EQ(empty_sums.shape, (Shape{2, 3}));
  for (const T& value : empty_sums.data) EXPECT_EQ(midpoint(value), 0.0);
  const Array<T> single = matmul_nt(Array<T>({1, 1}, {T(3.0)}), Array<T>({1, 1}, {T(-0.5)}));
  EXPECT_EQ(midpoint(single[0]), -1.5);
}

TEST(MatmulNt, empty_and_single_sizes) {
  expect_small_sizes_to_work<double>();
  expect_small_sizes_to_work<Real>();
  expect_small_sizes_to_work<Ball>();
  expect_small_sizes_to_work<Bound>();
}

TEST(MatmulNt, does_not_depend_on_the_number_of_jobs) {
  const Array<double> x = seeded<double>({9, 33}, 7), w = seeded<double>({8, 33}, 8);
  const int saved = jobs();
  set_jobs(1);
  const Array<double> alone = matmul_nt(x, w);
  set_jobs(5);
  EXPECT_EQ(matmul_nt(x, w).data, alone.data);
  set_jobs(saved);
}

}  // namespace
}  // namespace assay::reference
