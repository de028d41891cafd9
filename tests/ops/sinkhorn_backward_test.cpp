// The reverse of Sinkhorn. Expected numbers: shared/cases/public_reports.md part 3 (T..).
#include <algorithm>

#include "reference/ops/mhc_backward.h"
#include "tests/ops/central_difference_mhc.h"

namespace assay::reference {
namespace {

using namespace proof;  // NOLINT: the words of this file

constexpr double kEps = 1e-6;
const Array<double> kT06({4, 4}, {2, 0, -1, 0, 0, 0, 1, -2, 1, -1, 0, 0, -1, 3, 0, 1});

/// w_ij = (i + 1)(j + 2).
Array<double> weights() {
  Array<double> w({4, 4});
  for (std::int64_t i = 0; i < 4; ++i)
    for (std::int64_t j = 0; j < 4; ++j) w.at(i, j) = static_cast<double>((i + 1) * (j + 2));
  return w;
}

template <class T>
Array<T> t10(std::int64_t iterations) {
  return sinkhorn_backward(as<T>(kT06), iterations, kEps, as<T>(weights()));
}

/// The reverse step by step on the matrices, d = (d - sum(d Y)) / s, the form of the sources.
template <class T>
Array<T> plain(const Array<T>& logits, std::int64_t iterations, const Array<T>& d_h_res) {
  const std::int64_t n = logits.dim(0);
  Array<T> p = sinkhorn(logits, 1, 0.0).h_res;
  for (std::int64_t i = 0; i < n; ++i) {
    T sum(0.0);
    for (std::int64_t j = 0; j < n; ++j) sum = sum + exp(logits.at(i, j));
    for (std::int64_t j = 0; j < n; ++j) p.at(i, j) = exp(logits.at(i, j)) / sum;
  }
  struct Step {
    Array<T> y;
    std::vector<T> s;
  };
  std::vector<Step> steps;
  Array<T> m = p;
  for (T& value : m.data) value = value + constant<T>(kEps);
  const auto in_line = [n](Array<T>& x, bool rows, std::int64_t a, std::int64_t b) -> T& {
    return x[rows ? a * n + b : b * n + a];
  };
  for (std::int64_t step = 0; step < 2 * iterations - 1; ++step) {
    std::vector<T> sums;
    for (std::int64_t a = 0; a < n; ++a) {
      T s = constant<T>(kEps);
      for (std::int64_t b = 0; b < n; ++b) s = s + in_line(m, step % 2 == 1, a, b);
      for (std::int64_t b = 0; b < n; ++b) in_line(m, step % 2 == 1, a, b) /= s;
      sums.push_back(s);
    }
    steps.push_back({m, sums});
  }
  Array<T> d = d_h_res;
  for (std::int64_t step = 2 * iterations - 2; step >= 0; --step) {
    Step& here = steps[static_cast<std::size_t>(step)];
    for (std::int64_t a = 0; a < n; ++a) {
      T inner(0.0);
      for (std::int64_t b = 0; b < n; ++b)
        inner = inner + in_line(d, step % 2 == 1, a, b) * in_line(here.y, step % 2 == 1, a, b);
      for (std::int64_t b = 0; b < n; ++b) {
        T& value = in_line(d, step % 2 == 1, a, b);
        value = (value - inner) / here.s[static_cast<std::size_t>(a)];
      }
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    T mean(0.0);
    for (std::int64_t j = 0; j < n; ++j) mean = mean + d.at(i, j) * p.at(i, j);
    for (std::int64_t j = 0; j < n; ++j) d.at(i, j) = p.at(i, j) * (d.at(i, j) - mean);
  }
  return d;
}

template <class T>
double widest(const Array<T>& x) {
  double result = 0.0;
  for (const T& value : x.data) result = std::max(result, radius(value));
  return result;
}

TEST(SinkhornBackward, T10_a_each_row_sums_to_0) {
  const ContextScope scope(with_bits(256));
  for (const std::int64_t iterations : {1, 20}) {
    const Array<Real> d = t10<Real>(iterations);
    for (std::int64_t i = 0; i < 4; ++i)
      EXPECT_LT(distance(d.at(i, 0) + d.at(i, 1) + d.at(i, 2) + d.at(i, 3), Real(0)), 1e-60);
  }
}

TEST(SinkhornBackward, T10_b_row_0_at_20_steps) {
  const ContextScope scope(with_bits(192));
  const Array<Ball> d = t10<Ball>(20);
  EXPECT_NEAR(midpoint(d[0]), 0.5829833898977, 5e-14);
  EXPECT_NEAR(midpoint(d[1]), 0.1474595082845, 5e-14);
  EXPECT_NEAR(midpoint(d[2]), -0.04455976546286, 5e-15);
  EXPECT_NEAR(midpoint(d[3]), -0.6858831327193, 5e-14);
  EXPECT_LT(widest(d), 1e-45);
  const Array<Ball> comb = sinkhorn(as<Ball>(kT06), 20, kEps).h_res, w = as<Ball>(weights());
  EXPECT_NEAR(midpoint(dot(comb.data.data(), 1, w.data.data(), 1, 16)), 35.794619773123, 5e-13);
}

TEST(SinkhornBackward, T10_b_row_0_at_1_step) {
  const ContextScope scope(with_bits(192));
  const Array<Ball> d = t10<Ball>(1);
  EXPECT_NEAR(midpoint(d[0]), 1.939297858929, 5e-13);
  EXPECT_NEAR(midpoint(d[1]), -0.2146836651646, 5e-14);
  EXPECT_NEAR(midpoint(d[2]), -0.092583907502, 5e-13);
  EXPECT_NEAR(midpoint(d[3]), -1.632030286262, 5e-13);
  const Array<Ball> comb = sinkhorn(as<Ball>(kT06), 1, kEps).h_res, w = as<Ball>(weights());
  EXPECT_NEAR(midpoint(dot(comb.data.data(), 1, w.data.data(), 1, 16)), 36.5717541755142, 5e-13);
}

/// C (W - a_i - b_j) with a and b chosen so that rows and columns of the result sum to 0: the gradient if C were the
/// limit of the iteration.
Array<double> closed_form(const Array<double>& c, const Array<double>& w) {
  std::vector<double> a(4), b(4);
  for (int sweep = 0; sweep < 2000; ++sweep) {
    for (std::int64_t i = 0; i < 4; ++i) {
      double sum = 0.0, total = 0.0;
      for (std::int64_t j = 0; j < 4; ++j) {
        sum += c.at(i, j) * (w.at(i, j) - b[static_cast<std::size_t>(j)]);
        total += c.at(i, j);
      }
      a[static_cast<std::size_t>(i)] = sum / total;
    }
    for (std::int64_t j = 0; j < 4; ++j) {
      double sum = 0.0, total = 0.0;
      for (std::int64_t i = 0; i < 4; ++i) {
        sum += c.at(i, j) * (w.at(i, j) - a[static_cast<std::size_t>(i)]);
        total += c.at(i, j);
      }
      b[static_cast<std::size_t>(j)] = sum / total;
    }
  }
  Array<double> d({4, 4});
  for (std::int64_t i = 0; i < 4; ++i)
    for (std::int64_t j = 0; j < 4; ++j)
      d.at(i, j) = c.at(i, j) * (w.at(i, j) - a[static_cast<std::size_t>(i)] - b[static_cast<std::size_t>(j)]);
  return d;
}

TEST(SinkhornBackward, T10_the_closed_form_is_off_by_1_378_at_1_step_and_6_1e_6_at_20) {
  const auto off = [](std::int64_t iterations) {
    const Array<double> d = t10<double>(iterations),
                        closed = closed_form(sinkhorn(kT06, iterations, kEps).h_res, weights());
    double largest = 0.0;
    for (std::int64_t i = 0; i < 16; ++i) largest = std::max(largest, std::abs(d[i] - closed[i]));
    return largest;
  };
  EXPECT_NEAR(off(1), 1.378, 5e-4);
  EXPECT_NEAR(off(20), 6.1e-6, 5e-8);
}

TEST(SinkhornBackward, equals_central_differences) {
  for (const std::int64_t n : {2, 3, 4})
    for (const std::int64_t iterations : {1, 2, 3, 20})
      for (const double scale : {1.0, 1e-3})
        prove(
            {seeded({2, n, n}, static_cast<unsigned>(n), scale)},
            [&]<class T>(const Arrays<T>& in) {
              Sinkhorn<T> y = sinkhorn(in[0], iterations, kEps);
              return Arrays<T>{y.h_res, y.row_sums, y.column_sums};
            },
            [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
              return Arrays<T>{sinkhorn_backward(in[0], iterations, kEps, d[0], d[1], d[2])};
            });
}

TEST(SinkhornBackward, balls_stay_narrow_where_the_reverse_on_matrices_doubles_them) {
  const ContextScope scope(with_bits(128));
  const Array<Ball> logits = as<Ball>(seeded({4, 4}, 21, 2.0)), d = as<Ball>(seeded({4, 4}, 22));
  const Array<Ball> scalings = sinkhorn_backward(logits, 20, kEps, d), matrices = plain(logits, 20, d);
  for (std::int64_t i = 0; i < 16; ++i) EXPECT_TRUE(overlap(scalings[i], matrices[i]));
  EXPECT_LT(widest(scalings), 1e-33);
  EXPECT_GT(widest(matrices), 1e-28);
}

TEST(SinkhornBackward, is_the_reverse_on_matrices_in_another_form) {
  const ContextScope scope(with_bits(256));
  for (const double scale : {0.1, 1.0, 5.0}) {
    const Array<Real> logits = as<Real>(seeded({3, 3}, 31, scale)), d = as<Real>(seeded({3, 3}, 32));
    const Array<Real> scalings = sinkhorn_backward(logits, 7, kEps, d), matrices = plain(logits, 7, d);
    for (std::int64_t i = 0; i < 9; ++i) EXPECT_LT(distance(scalings[i], matrices[i]), 1e-65);
  }
}

TEST(SinkhornBackward, bound_covers_the_reverse_on_matrices_in_float32) {
  Context single = with_bits(128);
  single.rounding = {.compute = 0x1p-24, .activation = 0x1p-24, .tiny = 0x1p-126};
  const ContextScope scope(single);
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Array<double> logits = seeded({4, 4}, 40 + seed, 0.5 * (1 + seed % 6)), d = seeded({4, 4}, 80 + seed);
    const std::int64_t iterations = seed % 2 ? 20 : 3;
    const Array<Bound> bound = sinkhorn_backward(as<Bound>(logits), iterations, kEps, as<Bound>(d));
    const Array<Sampled> sampled = plain(as<Sampled>(logits), iterations, as<Sampled>(d));
    const Array<Sampled> scalings = sinkhorn_backward(as<Sampled>(logits), iterations, kEps, as<Sampled>(d));
    for (std::int64_t i = 0; i < 16; ++i) {
      EXPECT_LE(std::abs(sampled[i].v - bound[i].v), bound[i].e);
      EXPECT_LE(std::abs(scalings[i].v - bound[i].v), bound[i].e);
      EXPECT_LT(bound[i].e, 1e-3);
    }
  }
}

TEST(SinkhornBackward, huge_logits_give_finite_gradients) {
  const Array<double> logits({2, 2}, {500, -500, 400, 399});
  for (const std::int64_t iterations : {1, 20})
    for (const double value : sinkhorn_backward(logits, iterations, kEps, seeded({2, 2}, 1)).data)
      EXPECT_TRUE(std::isfinite(value));
}

TEST(SinkhornBackward, rejects_zero_iterations) { EXPECT_THROW(t10<double>(0), InputError); }

}  // namespace
}  // namespace assay::reference
