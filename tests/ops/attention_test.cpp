#include "reference/ops/attention.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "cases/formats.h"

namespace assay::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> random_values(std::int64_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> result(static_cast<std::size_t>(n));
  for (double& value : result) value = rounded(bf16(), normal(random));
  return result;
}

template <class T>
Array<T> array(Shape shape, const std::vector<double>& values) {
  return Array<T>(std::move(shape), std::vector<T>(values.begin(), values.end()));
}

constexpr std::int64_t kQueries = 4, kHeads = 3, kTokens = 7, kDim = 6, kValueDim = 5, kLatent = 8;

/// Queries, keys and values that a latent row determines, and the same in absorbed form.
template <class T>
struct Layer {
  Array<T> c = array<T>({kTokens, kLatent}, random_values(kTokens* kLatent, 1));
  Array<T> w_k = array<T>({kHeads, kDim, kLatent}, random_values(kHeads* kDim* kLatent, 2));
  Array<T> w_v = array<T>({kHeads, kValueDim, kLatent}, random_values(kHeads* kValueDim* kLatent, 3));
  Array<T> q = array<T>({kQueries, kHeads, kDim}, random_values(kQueries* kHeads* kDim, 4));
  Array<T> k{Shape{kTokens, kHeads, kDim}}, v{Shape{kTokens, kHeads, kValueDim}};
  Array<T> absorbed_q{Shape{kQueries, kHeads, kLatent}};
  Index ids{{kQueries, 5}, {0, 3, 5, -1, -1, 6, 2, 1, 0, 4, -1, -1, -1, -1, -1, -1, 2, -1, -1, -1}};

  Layer() {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t s = 0; s < kTokens; ++s) {
        for (std::int64_t d = 0; d < kDim; ++d)
          k.at(s, h, d) = dot(w_k.row(h * kDim + d, kLatent), 1, c.row(s, kLatent), 1, kLatent);
        for (std::int64_t d = 0; d < kValueDim; ++d)
          v.at(s, h, d) = dot(w_v.row(h * kValueDim + d, kLatent), 1, c.row(s, kLatent), 1, kLatent);
      }
      for (std::int64_t t = 0; t < kQueries; ++t)
        for (std::int64_t l = 0; l < kLatent; ++l)
          absorbed_q.at(t, h, l) = dot(q.row(t * kHeads + h, kDim), 1, w_k.row(h * kDim, kLatent) + l, kLatent, kDim);
    }
  }
};

TEST(MlaAttention, T51_a_row_without_ids_has_output_0_and_lse_minus_infinity) {
  const Layer<double> layer;
  const MaskedAttention<double> a = mla_attention(layer.q, layer.k, layer.v, layer.ids, 0.25);
  const Layer<Ball> balls;
  const MaskedAttention<Ball> certified = mla_attention(balls.q, balls.k, balls.v, balls.ids, Ball(0.25));
  const SparseAttention<Ball> absorbed = sparse_attention(balls.absorbed_q, balls.c, balls.ids, Ball(0.25), kLatent);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    EXPECT_EQ(a.lse.at(2, h), -kInfinity);
    EXPECT_TRUE(certainly_equal(certified.lse.at(2, h), Ball(-kInfinity)));
    EXPECT_TRUE(certainly_equal(absorbed.lse.at(2, h), Ball(-kInfinity)));
    for (std::int64_t c = 0; c < kValueDim; ++c) {
      EXPECT_EQ(a.o.at(2, h, c), 0.0);
      EXPECT_TRUE(certainly_equal(certified.o.at(2, h, c), Ball(0.0)));
    }
    for (std::int64_t s = 0; s < kTokens; ++s) EXPECT_EQ(a.weights.at(2, h, s), 0.0);
  }
}

TEST(MlaAttention, T52_scale_is_that_of_the_head_and_not_of_a_padded_width) {
  // Two keys with raw scores 16 and 0; width 256 stands for any width, the scale is an operand.
  const Array<Ball> q = array<Ball>({1, 1, 1}, {16}), k = array<Ball>({2, 1, 1}, {1, 0});
  const Index ids({1, 2}, {0, 1});
  const auto p0 = [&](std::int64_t width) {
    return midpoint(mla_attention(q, k, k, ids, inverse_root<Ball>(width)).weights[0]);
  };
  EXPECT_NEAR(p0(256), 0.73105857863, 5e-12);
  EXPECT_NEAR(p0(320), 0.709802943757, 5e-13);
  EXPECT_NEAR(p0(512), 0.669761549327, 5e-13);
}

TEST(MlaAttention, one_key_gets_weight_one_and_its_score_as_lse) {
  const Layer<Ball> layer;
  const MaskedAttention<Ball> a = mla_attention(layer.q, layer.k, layer.v, layer.ids, Ball(0.25));
  for (std::int64_t h = 0; h < kHeads; ++h) {
    EXPECT_TRUE(contains(a.weights.at(3, h, 2), 1.0));
    const Ball score =
        dot(layer.q.row(3 * kHeads + h, kDim), 1, layer.k.row(2 * kHeads + h, kDim), 1, kDim) * Ball(0.25);
    EXPECT_TRUE(overlap(a.lse.at(3, h), score));
    for (std::int64_t c = 0; c < kValueDim; ++c) EXPECT_TRUE(overlap(a.o.at(3, h, c), layer.v.at(2, h, c)));
  }
}

TEST(MlaAttention, gathered_and_masked_formulations_agree) {
  const Layer<Ball> layer;
  const MaskedAttention<Ball> gathered = mla_attention(layer.q, layer.k, layer.v, layer.ids, Ball(0.25));
  const MaskedAttention<Ball> masked = mla_attention_masked(layer.q, layer.k, layer.v, layer.ids, Ball(0.25));
  const auto agree = [](const Array<Ball>& a, const Array<Ball>& b) {
    ASSERT_EQ(a.shape, b.shape);
    for (std::int64_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(overlap(a[i], b[i]));
      EXPECT_LT(radius(a[i]), 1e-30);
      EXPECT_LT(radius(b[i]), 1e-30);
    }
  };
  agree(gathered.o, masked.o);
  agree(gathered.weights, masked.weights);
  for (std::int64_t i = 0; i < gathered.lse.size(); ++i)
    EXPECT_TRUE(overlap(gathered.lse[i], masked.lse[i]) || certainly_equal(gathered.lse[i], masked.lse[i]));
}

TEST(MlaAttention, absorbed_form_is_the_expanded_form) {
  const Layer<Ball> layer;
  const MaskedAttention<Ball> expanded = mla_attention(layer.q, layer.k, layer.v, layer.ids, Ball(0.25));
  const SparseAttention<Ball> absorbed = sparse_attention(layer.absorbed_q, layer.c, layer.ids, Ball(0.25), kLatent);
  for (std::int64_t t = 0; t < kQueries; ++t)
    for (std::int64_t h = 0; h < kHeads; ++h) {
      EXPECT_TRUE(overlap(absorbed.lse.at(t, h), expanded.lse.at(t, h)) ||
                  certainly_equal(absorbed.lse.at(t, h), expanded.lse.at(t, h)));
      for (std::int64_t d = 0; d < kValueDim; ++d) {
        const Ball o =
            dot(layer.w_v.row(h * kValueDim + d, kLatent), 1, absorbed.o.row(t * kHeads + h, kLatent), 1, kLatent);
        EXPECT_TRUE(overlap(o, expanded.o.at(t, h, d)));
        EXPECT_LT(radius(o), 1e-30);
      }
    }
}

TEST(MlaAttention, value_dim_takes_the_leading_channels) {
  const Layer<Ball> layer;
  const SparseAttention<Ball> all = sparse_attention(layer.absorbed_q, layer.c, layer.ids, Ball(0.25), kLatent);
  const SparseAttention<Ball> some = sparse_attention(layer.absorbed_q, layer.c, layer.ids, Ball(0.25), kDim);
  ASSERT_EQ(some.o.dim(2), kDim);
  for (std::int64_t c = 0; c < kDim; ++c) {
    EXPECT_TRUE(overlap(some.o.at(0, 0, c), all.o.at(0, 0, c)));
    EXPECT_EQ(midpoint(some.o.at(0, 0, c)), midpoint(all.o.at(0, 0, c)));
  }
  EXPECT_THROW(sparse_attention(layer.absorbed_q, layer.c, layer.ids, Ball(0.25), kLatent + 1), InputError);
}

TEST(MlaAttention, order_of_ids_does_not_matter) {
  Layer<double> layer;
  const MaskedAttention<double> a = mla_attention(layer.q, layer.k, layer.v, layer.ids, 0.25);
  layer.ids = Index({kQueries, 5}, {5, -1, 0, -1, 3, 0, 1, 2, 4, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2});
  const MaskedAttention<double> b = mla_attention(layer.q, layer.k, layer.v, layer.ids, 0.25);
  EXPECT_EQ(a.o.data, b.o.data);
  EXPECT_EQ(a.weights.data, b.weights.data);
}

TEST(MlaAttention, scalars_agree) {
  const ContextScope real_precision(context());
  const Layer<Ball> balls;
  const Layer<Real> reals;
  const Layer<Bound> bounds;
  const Array<Ball> ball = mla_attention(balls.q, balls.k, balls.v, balls.ids, Ball(0.25)).o;
  const Array<Real> real = mla_attention(reals.q, reals.k, reals.v, reals.ids, Real(0.25)).o;
  const Array<Bound> bound = mla_attention(bounds.q, bounds.k, bounds.v, bounds.ids, Bound(0.25)).o;
  const Layer<double> plain;
  const Array<double> fast = mla_attention(plain.q, plain.k, plain.v, plain.ids, 0.25).o;
  for (std::int64_t i = 0; i < ball.size(); ++i) {
    EXPECT_LE(midpoint(abs(ball[i] - to_ball(real[i]))), 1e-34);
    EXPECT_LE(std::abs(fast[i] - midpoint(ball[i])), bound[i].e);
    EXPECT_LE(bound[i].e, 1e-11);
  }
}

TEST(MlaAttention, scores_of_any_size_do_not_overflow) {
  const Array<double> q = array<double>({1, 1, 1}, {1}), k = array<double>({2, 1, 1}, {1e5, 1e5 - 1});
  const MaskedAttention<double> a = mla_attention(q, k, k, Index({1, 2}, {0, 1}), 1.0);
  EXPECT_NEAR(a.weights[0], 0.73105857863, 1e-9);
  EXPECT_NEAR(a.lse[0], 1e5 + std::log1p(std::exp(-1.0)), 1e-9);
}

TEST(MlaAttention, ids_out_of_range_or_twice_in_a_row_are_input_errors) {
  const Layer<double> layer;
  const auto with = [&](std::int64_t a, std::int64_t b) {
    Index ids({kQueries, 2}, std::vector<std::int64_t>(2 * kQueries, -1));
    ids[0] = a;
    ids[1] = b;
    return mla_attention(layer.q, layer.k, layer.v, ids, 0.25).o[0];
  };
  EXPECT_THROW(with(0, kTokens), InputError);
  EXPECT_THROW(with(0, -2), InputError);
  EXPECT_THROW(with(4, 4), InputError);
  EXPECT_NO_THROW(with(4, -1));
}

}  // namespace
}  // namespace assay::reference
