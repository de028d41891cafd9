// Bound must hold for every implementation under its RoundingModel: here float32 evaluations in several orders, and the
// exact value itself.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "cases/formats.h"
#include "reference/scalar.h"

namespace assay::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Context float32(double activation = 0x1p-24) {
  Context result;
  result.bits = 256;
  result.rounding = {.compute = 0x1p-24, .activation = activation, .tiny = 0x1p-126};
  return result;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}
  /// Uniform in [low, high), exact in float32.
  float between(double low, double high) {
    return static_cast<float>(low + (high - low) * static_cast<double>(random_() >> 11) * 0x1p-53);
  }

 private:
  std::mt19937_64 random_;
};

/// Largest share of its bound that a value used.
class Shares {
 public:
  void add(double found, const Bound& bound, const std::string& what) {
    const double error = std::abs(found - bound.v);
    EXPECT_LE(error, bound.e) << what << ": " << found << " for " << bound.v;
    if (bound.e > 0 && std::isfinite(bound.e)) largest_ = std::max(largest_, error / bound.e);
  }
  double largest() const { return largest_; }

 private:
  double largest_ = 0.0;
};

using Floats = std::vector<float>;

float forward_sum(const Floats& terms) {
  float sum = 0;
  for (const float term : terms) sum += term;
  return sum;
}
float backward_sum(const Floats& terms) { return forward_sum(Floats(terms.rbegin(), terms.rend())); }
float tree_sum(Floats terms) {
  for (; terms.size() > 1; terms.resize((terms.size() + 1) / 2))
    for (std::size_t i = 0; i < terms.size() / 2; ++i) {
      terms[i] += terms[terms.size() - 1 - i];
    }
  return terms.empty() ? 0 : terms[0];
}
float eight_lanes(const Floats& terms) {
  Floats lanes(8, 0);
  for (std::size_t i = 0; i < terms.size(); ++i) lanes[i % 8] += terms[i];
  return tree_sum(lanes);
}

TEST(Bound, a_dot_holds_for_every_order_and_for_fused_products) {
  const ContextScope scope(float32());
  Random random(1);
  Shares shares;
  for (const std::size_t n : {1U, 2U, 3U, 17U, 256U, 1000U}) {
    for (int trial = 0; trial < 20; ++trial) {
      Floats a, b, products;
      std::vector<Bound> a_bound, b_bound;
      double exact_sum = 0.0;
      float fused = 0;
      for (std::size_t i = 0; i < n; ++i) {
        a.push_back(random.between(-1, 1));
        b.push_back(random.between(trial % 2 ? 0 : -1, 1));
        products.push_back(a[i] * b[i]);
        fused = std::fma(a[i], b[i], fused);
        exact_sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
        a_bound.emplace_back(static_cast<double>(a[i]));
        b_bound.emplace_back(static_cast<double>(b[i]));
      }
      const Bound bound = dot(a_bound.data(), 1, b_bound.data(), 1, static_cast<std::ptrdiff_t>(n));
      for (const auto& sum : {forward_sum(products), backward_sum(products), tree_sum(products), eight_lanes(products),
                              fused, static_cast<float>(exact_sum)})
        shares.add(static_cast<double>(sum), bound, "dot of " + std::to_string(n));
    }
  }
  EXPECT_GT(shares.largest(), 1e-3);
}

TEST(Bound, a_dot_carries_the_errors_of_its_operands) {
  const ContextScope scope(float32(0x1p-8));
  Random random(2);
  Shares shares;
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<Bound> a, b;
    float sum = 0;
    for (int i = 0; i < 64; ++i) {
      const double x = static_cast<double>(random.between(-1, 1)), y = static_cast<double>(random.between(-1, 1));
      a.push_back(round_at(point("linear/y"), Bound(x)));
      b.push_back(round_at(point("linear/y"), Bound(y)));
      sum += static_cast<float>(rounded(bf16(), x)) * static_cast<float>(rounded(bf16(), y));
    }
    shares.add(static_cast<double>(sum), dot(a.data(), 1, b.data(), 1, 64), "dot of rounded operands");
  }
  EXPECT_GT(shares.largest(), 1e-3);
}

TEST(Bound, a_softmax_holds_for_every_order) {
  const ContextScope scope(float32());
  Random random(3);
  Shares shares;
  for (const int n : {1, 2, 5, 64}) {
    for (int trial = 0; trial < 20; ++trial) {
      Floats x, exps;
      std::vector<Bound> bounds, ones(static_cast<std::size_t>(n), Bound(1.0));
      for (int i = 0; i < n; ++i) x.push_back(random.between(-20, 20));
      const float top = *std::max_element(x.begin(), x.end());
      for (const float v : x) {
        exps.push_back(std::exp(v - top));
        bounds.push_back(exp(Bound(static_cast<double>(v)) - Bound(static_cast<double>(top))));
      }
      const Bound sum = dot(bounds.data(), 1, ones.data(), 1, n);
      const float inverse = 1 / backward_sum(exps);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const Bound share = bounds[i] / sum;
        shares.add(static_cast<double>(exps[i] / forward_sum(exps)), share, "divided");
        shares.add(static_cast<double>(exps[i] / tree_sum(exps)), share, "tree");
        // Multiplying by the inverse is two roundings where the formula has one.
        shares.add(static_cast<double>(exps[i] * inverse), bounds[i] * (Bound(1.0) / sum), "inverse");
      }
    }
  }
  EXPECT_GT(shares.largest(), 1e-3);
}

/// One function in its readings.
struct Function {
  const char* name;
  double low, high;
  std::function<float(float)> implementation;
  std::function<Bound(const Bound&)> bound;
  std::function<Real(const Real&)> truth;
};

const std::vector<Function>& functions() {
#define ASSAY_FUNCTION(f) [](const Bound& x) { return f(x); }, [](const Real& x) { return Real(f(x)); }
  static const std::vector<Function> all = {
      {"exp", -80, 80, [](float x) { return std::exp(x); }, ASSAY_FUNCTION(exp)},
      {"exp by powers of two", -80, 80, [](float x) { return std::exp2(x * 1.442695041F); }, ASSAY_FUNCTION(exp)},
      {"log", 1e-6, 50, [](float x) { return std::log(x); }, ASSAY_FUNCTION(log)},
      {"sqrt", 0, 50, [](float x) { return std::sqrt(x); }, ASSAY_FUNCTION(sqrt)},
      {"rsqrt", 1e-6, 50, [](float x) { return 1 / std::sqrt(x); }, ASSAY_FUNCTION(rsqrt)},
      {"sigmoid", -60, 60, [](float x) { return 1 / (1 + std::exp(-x)); }, ASSAY_FUNCTION(sigmoid)},
      {"softplus", -40, 40, [](float x) { return x > 20 ? x : std::log1p(std::exp(x)); }, ASSAY_FUNCTION(softplus)},
      {"softplus by log", -40, 40, [](float x) { return x > 20 ? x : std::log(1 + std::exp(x)); },
       ASSAY_FUNCTION(softplus)},
      {"erf", -4, 4, [](float x) { return std::erf(x); }, ASSAY_FUNCTION(erf)},
      {"sin", -30, 30, [](float x) { return std::sin(x); }, ASSAY_FUNCTION(sin)},
      {"cos", -30, 30, [](float x) { return std::cos(x); }, ASSAY_FUNCTION(cos)},
  };
#undef ASSAY_FUNCTION
  return all;
}

TEST(Bound, functions_hold_for_float32_implementations) {
  const ContextScope scope(float32());
  for (const Function& f : functions()) {
    Random random(4);
    Shares shares;
    for (int trial = 0; trial < 2000; ++trial) {
      const float x = random.between(f.low, f.high);
      shares.add(static_cast<double>(f.implementation(x)), f.bound(Bound(static_cast<double>(x))), f.name);
    }
    EXPECT_GT(shares.largest(), 1e-3) << f.name;
  }
}

TEST(Bound, functions_hold_for_arguments_that_are_off_and_for_the_exact_value) {
  const ContextScope scope(float32());
  for (const Function& f : functions()) {
    Random random(5);
    for (int trial = 0; trial < 1000; ++trial) {
      const double x = static_cast<double>(random.between(f.low, f.high));
      const double e = std::abs(x) * static_cast<double>(random.between(0, trial % 2 ? 1e-2 : 0.5));
      const Bound bound = f.bound(Bound(x, e));
      for (const double part : {-1.0, -0.5, 0.0, 0.3, 1.0}) {
        const Real found = f.truth(Real(x + part * e));
        EXPECT_LE(midpoint(Real(abs(Real(found - bound.v)))), bound.e) << f.name << " of " << x << " +/- " << e;
      }
    }
  }
}

TEST(Bound, powers_hold) {
  const ContextScope scope(float32());
  Random random(6);
  Shares shares;
  for (int trial = 0; trial < 1000; ++trial) {
    const float x = random.between(1e-3, 100), y = random.between(-5, 5);
    shares.add(static_cast<double>(std::pow(x, y)), pow(Bound(static_cast<double>(x)), Bound(static_cast<double>(y))),
               "pow");
  }
  EXPECT_GT(shares.largest(), 1e-3);
}

TEST(Bound, arithmetic_holds_for_operands_that_are_off) {
  const ContextScope scope(float32());
  Random random(7);
  Shares shares;
  for (int trial = 0; trial < 2000; ++trial) {
    const double a = static_cast<double>(random.between(-2, 2)), b = static_cast<double>(random.between(0.5, 2));
    const double ea = 1e-4 * static_cast<double>(random.between(0, 1)),
                 eb = 0.2 * static_cast<double>(random.between(0, 1));
    const Bound x(a, ea), y(b, eb);
    for (const double part_a : {-1.0, 0.0, 1.0})
      for (const double part_b : {-1.0, 0.0, 1.0}) {
        // Operands inside their bounds, then one rounding.
        const double u = a + part_a * ea, v = b + part_b * eb;
        shares.add(static_cast<double>(static_cast<float>(u + v)), x + y, "+");
        shares.add(static_cast<double>(static_cast<float>(u - v)), x - y, "-");
        shares.add(static_cast<double>(static_cast<float>(u * v)), x * y, "*");
        shares.add(static_cast<double>(static_cast<float>(u / v)), x / y, "/");
      }
  }
  EXPECT_GT(shares.largest(), 0.9) << "the corners are reached";
}

TEST(Bound, a_divisor_that_may_be_zero_has_no_bound) {
  EXPECT_EQ((Bound(1.0) / Bound(0.5, 0.5)).e, kInfinity);
  EXPECT_EQ((Bound(1.0) / Bound(-0.5, 0.6)).e, kInfinity);
  EXPECT_LT((Bound(1.0) / Bound(0.5, 0.25)).e, 2.1);
  EXPECT_EQ(log(Bound(1.0, 1.0)).e, kInfinity);
  EXPECT_EQ(rsqrt(Bound(1.0, 1.5)).e, kInfinity);
}

TEST(Bound, sqrt_near_zero_never_exceeds_the_root_of_the_error) {
  for (const double v : {0.0, 1e-12, 1e-6}) {
    const Bound root = sqrt(Bound(v, 1e-6));
    for (const double x : {0.0, v, v + 1e-6, std::max(0.0, v - 1e-6)})
      EXPECT_LE(std::abs(std::sqrt(x) - root.v), root.e) << v;
    EXPECT_LE(root.e, 1.0001e-3);
  }
}

TEST(Bound, clamps_hold_at_their_edges) {
  for (const double v : {-1.0, 0.0, 9.0, 9.9, 10.0, 10.1, 10.5, 12.0}) {
    for (const double e : {0.0, 0.1, 0.5, 1.0}) {
      const Bound above = clamp_above(Bound(v, e), 10.0), below = clamp_below(Bound(v, e), 10.0),
                  positive = relu(Bound(v, e));
      for (const double part : {-1.0, -0.5, 0.0, 0.5, 1.0}) {
        const double x = v + part * e;
        EXPECT_LE(std::abs(std::min(x, 10.0) - above.v), above.e * (1 + 1e-12)) << v << " +/- " << e;
        EXPECT_LE(std::abs(std::max(x, 10.0) - below.v), below.e * (1 + 1e-12)) << v << " +/- " << e;
        EXPECT_LE(std::abs(std::max(x, 0.0) - positive.v), positive.e * (1 + 1e-12)) << v << " +/- " << e;
      }
    }
  }
  EXPECT_EQ(clamp_above(Bound(12.0, 1.0), 10.0).e, 0.0) << "certainly clamped: exact";
  EXPECT_EQ(clamp_below(Bound(8.0, 1.0), 10.0).e, 0.0);
  EXPECT_EQ(relu(Bound(-1.0, 0.5)).e, 0.0);
  EXPECT_EQ(relu(Bound(0.25, 0.5)).e, 0.5);
}

TEST(Bound, a_rounding_point_allows_one_rounding_to_its_format) {
  const ContextScope scope(float32(0x1p-8));
  Random random(8);
  Shares activation, compute;
  for (int trial = 0; trial < 1000; ++trial) {
    const double x = static_cast<double>(random.between(-3, 3));
    activation.add(rounded(bf16(), x), round_at(point("linear/y"), Bound(x)), "bf16");
    const double root = std::sqrt(std::abs(x));
    compute.add(static_cast<double>(static_cast<float>(root)), round_compute(Bound(root)), "float32");
    EXPECT_LT(round_at(point("linear/y"), Bound(x)).e, 1.01 * 0x1p-8 * std::abs(x) + 1e-37);
  }
  EXPECT_GT(activation.largest(), 0.9);
  EXPECT_GT(compute.largest(), 0.9);
}

TEST(Bound, constants_may_be_rounded_and_integers_are_exact) {
  const ContextScope scope(float32());
  EXPECT_LE(std::abs(static_cast<double>(1e-6F) - 1e-6), constant<Bound>(1e-6).e);
  EXPECT_LE(constant<Bound>(1e-6).e, 0x1p-24 * 1e-6);
  EXPECT_EQ(Bound(3.0).e, 0.0);
}

TEST(Bound, in_double_it_covers_its_own_roundings) {
  Context own;
  own.bits = 256;
  const ContextScope scope(own);
  Random random(9);
  for (int trial = 0; trial < 500; ++trial) {
    const double a = static_cast<double>(random.between(-3, 3)), b = static_cast<double>(random.between(1, 3));
    const auto formula = [&]<class T>(const T*) {
      const T x(a), y(b);
      return T(sigmoid(T(x * y)) / T(exp(T(x - y)) + constant<T>(1e-6)) * rsqrt(T(y * y + x * x)));
    };
    const Bound bound = formula(static_cast<const Bound*>(nullptr));
    const Real truth = formula(static_cast<const Real*>(nullptr));
    EXPECT_LE(midpoint(Real(abs(Real(truth - bound.v)))), bound.e);
    EXPECT_LT(bound.e, 1e-13 * std::abs(bound.v));
  }
}

}  // namespace
}  // namespace assay::reference
