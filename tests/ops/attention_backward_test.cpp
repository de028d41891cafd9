#include "reference/ops/attention_backward.h"

#include "reference/ops/attention.h"
#include "tests/ops/central_difference_attention.h"

namespace assay::reference {
namespace {

constexpr std::int64_t kQueries = 4, kHeads = 2, kTokens = 6, kDim = 4, kValueDim = 3;
// A full row, one with gaps and no order, one without ids, one token alone; token 5 is selected once, token 1 twice.
const Index kIds({kQueries, 5}, {0, 1, 2, 3, 4, 5, -1, 0, 3, 1, -1, -1, -1, -1, -1, -1, -1, 2, -1, -1});

template <class T>
T scale() {
  return T(0.375);
}

template <class T>
Arrays<T> mla_gradients(const Arrays<T>& in, const Arrays<T>& d) {
  const AttentionGradients<T> g = mla_attention_backward(in[0], in[1], in[2], kIds, scale<T>(), d[0], d[1], d[2]);
  return {g.d_q, g.d_k, g.d_v};
}

Arrays<double> mla_inputs() {
  return {random_array({kQueries, kHeads, kDim}, 1), random_array({kTokens, kHeads, kDim}, 2),
          random_array({kTokens, kHeads, kValueDim}, 3)};
}

TEST(MlaAttentionBackward, gradients_are_those_of_output_weights_and_lse) {
  prove_backward(
      mla_inputs(),
      []<class T>(const Arrays<T>& in) {
        const MaskedAttention<T> a = mla_attention(in[0], in[1], in[2], kIds, scale<T>());
        return Arrays<T>{a.o, a.weights, a.lse};
      },
      []<class T>(const Arrays<T>& in, const Arrays<T>& d) { return mla_gradients(in, d); });
}

TEST(MlaAttentionBackward, gathered_and_masked_formulations_agree) {
  const Arrays<Ball> in = widened<Ball>(mla_inputs());
  const Arrays<Ball> d =
      widened<Ball>({random_array({kQueries, kHeads, kValueDim}, 4), random_array({kQueries, kHeads, kTokens}, 5),
                     random_array({kQueries, kHeads}, 6)});
  const auto agree = [](const Array<Ball>& a, const Array<Ball>& b) {
    ASSERT_EQ(a.shape, b.shape);
    for (std::int64_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(overlap(a[i], b[i]));
      EXPECT_LT(radius(a[i]), 1e-30);
      EXPECT_LT(radius(b[i]), 1e-30);
    }
  };
  for (const bool only_output : {false, true}) {
    const Array<Ball> d_weights = only_output ? Array<Ball>() : d[1], d_lse = only_output ? Array<Ball>() : d[2];
    const AttentionGradients<Ball> a =
        mla_attention_backward(in[0], in[1], in[2], kIds, scale<Ball>(), d[0], d_weights, d_lse);
    const AttentionGradients<Ball> b =
        mla_attention_backward_masked(in[0], in[1], in[2], kIds, scale<Ball>(), d[0], d_weights, d_lse);
    agree(a.d_q, b.d_q);
    agree(a.d_k, b.d_k);
    agree(a.d_v, b.d_v);
  }
}

TEST(MlaAttentionBackward, T51_a_row_without_ids_has_gradients_of_exact_zeros) {
  const Arrays<double> in = mla_inputs();
  const Array<double> d_o = random_array({kQueries, kHeads, kValueDim}, 4), d_lse = random_array({kQueries, kHeads}, 6);
  const Index none({kQueries, 2}, std::vector<std::int64_t>(2 * kQueries, -1));
  for (const AttentionGradients<double>& g :
       {mla_attention_backward(in[0], in[1], in[2], none, 0.375, d_o, Array<double>(), d_lse),
        mla_attention_backward(in[0], in[1], in[2], Index(Shape{kQueries, 0}), 0.375, d_o, Array<double>(), d_lse)})
    for (const Array<double>& x : {g.d_q, g.d_k, g.d_v})
      for (const double value : x.data) EXPECT_EQ(value, 0.0);
  const AttentionGradients<double> g =
      mla_attention_backward(in[0], in[1], in[2], kIds, 0.375, d_o, Array<double>(), d_lse);
  for (std::int64_t i = 0; i < kHeads * kDim; ++i) EXPECT_EQ(g.d_q[2 * kHeads * kDim + i], 0.0);
}

TEST(MlaAttentionBackward, one_token_passes_the_output_gradient_to_its_value_and_nothing_to_its_scores) {
  const Arrays<double> in = mla_inputs();
  const Array<double> d_o = random_array({kQueries, kHeads, kValueDim}, 4);
  const AttentionGradients<Ball> g = mla_attention_backward(
      widened<Ball>({in[0]})[0], widened<Ball>({in[1]})[0], widened<Ball>({in[2]})[0],
      Index({kQueries, 1}, {-1, -1, -1, 2}), Ball(0.375), widened<Ball>({d_o})[0], Array<Ball>(), Array<Ball>());
  for (std::int64_t h = 0; h < kHeads; ++h) {
    for (std::int64_t c = 0; c < kDim; ++c) EXPECT_TRUE(contains(g.d_q.at(3, h, c), 0.0));
    for (std::int64_t c = 0; c < kValueDim; ++c) EXPECT_TRUE(contains(g.d_v.at(2, h, c), d_o.at(3, h, c)));
  }
}

TEST(MlaAttentionBackward, scores_of_any_size_do_not_overflow) {
  const Array<double> q({1, 1, 1}, {1}), k({2, 1, 1}, {1e5, 1e5 - 1}), v({2, 1, 1}, {1, 0});
  const AttentionGradients<double> g =
      mla_attention_backward(q, k, v, Index({1, 2}, {0, 1}), 1.0, Array<double>({1, 1, 1}, {1}), {}, {});
  // d_q = p (1 - p) (k0 - k1) with p = sigmoid(1).
  EXPECT_NEAR(g.d_q[0], 0.19661193324148185, 1e-9);
  EXPECT_NEAR(g.d_v[0], 0.7310585786300049, 1e-9);
}

TEST(SparseAttentionBackward, gradients_are_those_of_output_and_lse_with_a_value_narrower_than_the_key) {
  prove_backward(
      {random_array({kQueries, kHeads, kDim}, 1), random_array({kTokens, kDim}, 2)},
      []<class T>(const Arrays<T>& in) {
        const SparseAttention<T> a = sparse_attention(in[0], in[1], kIds, scale<T>(), kValueDim);
        return Arrays<T>{a.o, a.lse};
      },
      []<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        const SparseAttentionGradients<T> g =
            sparse_attention_backward(in[0], in[1], kIds, scale<T>(), kValueDim, d[0], d[1]);
        return Arrays<T>{g.d_q, g.d_c};
      });
}

TEST(SparseAttentionBackward, latent_gradients_are_the_sum_over_heads_of_those_of_keys_and_values) {
  // The expanded form with the same latent row as key and value of every head.
  const Array<Ball> q = widened<Ball>({random_array({kQueries, kHeads, kDim}, 1)})[0];
  const Array<Ball> c = widened<Ball>({random_array({kTokens, kDim}, 2)})[0];
  const Array<Ball> d_o = widened<Ball>({random_array({kQueries, kHeads, kDim}, 3)})[0];
  Array<Ball> rows({kTokens, kHeads, kDim});
  for (std::int64_t s = 0; s < kTokens; ++s)
    for (std::int64_t h = 0; h < kHeads; ++h)
      for (std::int64_t i = 0; i < kDim; ++i) rows.at(s, h, i) = c.at(s, i);
  const AttentionGradients<Ball> expanded = mla_attention_backward(q, rows, rows, kIds, Ball(0.375), d_o, {}, {});
  const SparseAttentionGradients<Ball> absorbed =
      sparse_attention_backward(q, c, kIds, Ball(0.375), kDim, d_o, Array<Ball>());
  for (std::int64_t i = 0; i < q.size(); ++i) EXPECT_TRUE(overlap(absorbed.d_q[i], expanded.d_q[i]));
  for (std::int64_t s = 0; s < kTokens; ++s)
    for (std::int64_t i = 0; i < kDim; ++i) {
      Ball sum(0.0);
      for (std::int64_t h = 0; h < kHeads; ++h) sum += expanded.d_k.at(s, h, i) + expanded.d_v.at(s, h, i);
      EXPECT_TRUE(overlap(absorbed.d_c.at(s, i), sum));
      EXPECT_LT(radius(absorbed.d_c.at(s, i)), 1e-30);
    }
}

TEST(AttentionBackward, errors_are_those_of_the_forward) {
  const Arrays<double> in = mla_inputs();
  const auto with = [&](std::int64_t a, std::int64_t b) {
    Index ids({kQueries, 2}, std::vector<std::int64_t>(2 * kQueries, -1));
    ids[0] = a;
    ids[1] = b;
    mla_attention_backward(in[0], in[1], in[2], ids, 0.375, {}, {}, {});
  };
  EXPECT_THROW(with(0, kTokens), InputError);
  EXPECT_THROW(with(0, -2), InputError);
  EXPECT_THROW(with(4, 4), InputError);
  EXPECT_NO_THROW(with(4, -1));
  const Array<double> c = random_array({kTokens, kDim}, 2);
  EXPECT_THROW(sparse_attention_backward(in[0], c, kIds, 0.375, kDim + 1, {}, {}), InputError);
}

}  // namespace
}  // namespace assay::reference
