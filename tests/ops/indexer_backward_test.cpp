#include "reference/ops/indexer_backward.h"

#include "reference/ops/indexer.h"
#include "tests/ops/central_difference_attention.h"

namespace assay::reference {
namespace {

/// kpool_compress over documents of several lengths, whose last pools are incomplete, with all three real outputs.
void prove_kpool(std::int64_t kpool, const Index& cu_seqlens, bool has_gate, bool has_ape) {
  const std::int64_t tokens = cu_seqlens[cu_seqlens.size() - 1], width = 3;
  Arrays<double> inputs = {random_array({tokens, width}, 1)};
  if (has_gate) inputs.push_back(random_array({tokens, width}, 2));
  if (has_ape) inputs.push_back(random_array({kpool, width}, 3));
  const auto gate = [=]<class T>(const Arrays<T>& in) { return has_gate ? in[1] : Array<T>(); };
  const auto ape = [=]<class T>(const Arrays<T>& in) { return has_ape ? in.back() : Array<T>(); };
  prove_backward(
      inputs,
      [&]<class T>(const Arrays<T>& in) {
        const KPool<T> pool = kpool_compress(in[0], gate(in), ape(in), kpool, cu_seqlens);
        return Arrays<T>{pool.pooled, pool.weights, pool.exp_of_score_minus_max};
      },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        KPoolGradients<T> g = kpool_compress_backward(in[0], gate(in), ape(in), kpool, cu_seqlens, d[0], d[1], d[2]);
        Arrays<T> result{g.d_k};
        if (has_gate) result.push_back(g.d_gate);
        if (has_ape) result.push_back(g.d_ape);
        return result;
      });
}

TEST(KPoolCompressBackward, gradients_of_pools_of_2_in_three_documents) {
  prove_kpool(2, Index({4}, {0, 5, 8, 9}), true, true);
}

TEST(KPoolCompressBackward, gradients_of_pools_of_4_after_left_padding) {
  prove_kpool(4, Index({3}, {2, 11, 18}), true, true);
}

TEST(KPoolCompressBackward, gradients_of_pools_of_8_in_two_documents) {
  prove_kpool(8, Index({3}, {0, 17, 26}), true, true);
}

TEST(KPoolCompressBackward, gradients_without_gate_or_without_ape) {
  prove_kpool(4, Index({3}, {0, 5, 9}), false, true);
  prove_kpool(4, Index({3}, {0, 5, 9}), true, false);
}

TEST(KPoolCompressBackward, tokens_in_no_pool_have_gradients_of_exact_zeros) {
  const Array<double> k = random_array({7, 2}, 1), gate = random_array({7, 2}, 2);
  const KPoolGradients<double> g =
      kpool_compress_backward(k, gate, Array<double>(), 4, Index({2}, {0, 7}), random_array({1, 2}, 3));
  for (std::int64_t i = 4 * 2; i < 7 * 2; ++i) {
    EXPECT_EQ(g.d_k[i], 0.0);
    EXPECT_EQ(g.d_gate[i], 0.0);
  }
  EXPECT_EQ(g.d_ape.size(), 0);
  const KPoolGradients<double> none =
      kpool_compress_backward(k, gate, random_array({8, 2}, 4), 8, Index({2}, {0, 7}), Array<double>(Shape{0, 2}));
  EXPECT_EQ(none.d_k.data, std::vector<double>(14, 0.0));
  EXPECT_EQ(none.d_ape.data, std::vector<double>(16, 0.0));
}

TEST(KPoolCompressBackward, T49b_gradients_at_gates_0_ln2_0_0_with_ape_ln3) {
  // Weights (1, 2, 3, 1) / 7 and pooled 18/7: d_k = weights, d_gate = weights (k - 18/7).
  Array<Ball> gate(Shape{4, 1}), ape(Shape{4, 1});
  gate[1] = log(Ball(2.0));
  ape[2] = log(Ball(3.0));
  const Array<Ball> k({4, 1}, {Ball(1), Ball(2), Ball(3), Ball(4)}), one({1, 1}, {Ball(1)});
  const KPoolGradients<Ball> g = kpool_compress_backward(k, gate, ape, 4, Index(), one);
  const std::vector<int> weights = {1, 2, 3, 1};
  for (int s = 0; s < 4; ++s) {
    const Ball weight = Ball(weights[static_cast<std::size_t>(s)]) / Ball(7);
    EXPECT_TRUE(overlap(g.d_k[s], weight));
    EXPECT_TRUE(overlap(g.d_gate[s], weight * (Ball(s + 1) - Ball(18) / Ball(7))));
    EXPECT_TRUE(overlap(g.d_ape[s], g.d_gate[s]));
    EXPECT_LT(radius(g.d_gate[s]), 1e-35);
  }
}

TEST(HadamardBackward, gradients_are_those_of_the_rotation) {
  for (const std::int64_t d : {8, 16})
    prove_backward(
        {random_array({3, d}, 1)},
        []<class T>(const Arrays<T>& in) { return Arrays<T>{hadamard_fp8(in[0], false, 1e-4).transformed}; },
        []<class T>(const Arrays<T>& in, const Arrays<T>& c) { return Arrays<T>{hadamard_backward(in[0], c[0])}; });
}

TEST(HadamardBackward, rows_that_are_rotated_already_pass_the_gradient_on) {
  const Array<double> x = random_array({3, 8}, 1), d_y = random_array({3, 8}, 2);
  EXPECT_EQ(hadamard_backward(x, d_y, false).data, d_y.data);
}

TEST(HeadWeightsBackward, gradients_are_those_of_the_scaled_product) {
  prove_backward(
      {random_array({5, 6}, 1), random_array({3, 6}, 2)},
      []<class T>(const Arrays<T>& in) { return Arrays<T>{head_weights(in[0], in[1], 128)}; },
      []<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        const HeadWeightsGradients<T> g = head_weights_backward(in[0], in[1], 128, d[0]);
        return Arrays<T>{g.d_x, g.d_weight};
      });
}

void prove_scores(bool use_relu, std::optional<double> scale) {
  // Normal values: dots and head weights of both signs.
  prove_backward(
      {random_array({4, 3, 5}, 1), random_array({6, 5}, 2), random_array({4, 3}, 3)},
      [&]<class T>(const Arrays<T>& in) { return Arrays<T>{index_scores(in[0], in[1], in[2], use_relu, scale)}; },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        const IndexScoresGradients<T> g = index_scores_backward(in[0], in[1], in[2], use_relu, scale, d[0]);
        return Arrays<T>{g.d_q, g.d_pooled, g.d_w};
      });
}

TEST(IndexScoresBackward, gradients_are_those_of_the_scores_with_relu) { prove_scores(true, 0.3); }

TEST(IndexScoresBackward, gradients_are_those_of_the_scores_without_relu_or_scale) {
  prove_scores(false, std::nullopt);
}

TEST(IndexScoresBackward, a_dot_passes_its_gradient_only_above_zero) {
  // Two pools: the dots are 2 and -2 with the first query and exactly 0 with the second.
  const Array<Ball> q({2, 1, 2}, {Ball(1), Ball(1), Ball(1), Ball(-1)});
  const Array<Ball> pooled({2, 2}, {Ball(1), Ball(1), Ball(-1), Ball(-1)}), w({2, 1}, {Ball(-3), Ball(-3)});
  const Array<Ball> ones({2, 2}, {Ball(1), Ball(1), Ball(1), Ball(1)});
  const IndexScoresGradients<Ball> g = index_scores_backward(q, pooled, w, true, std::nullopt, ones);
  EXPECT_TRUE(certainly_equal(g.d_q[0], Ball(-3)));
  EXPECT_TRUE(certainly_equal(g.d_pooled.at(0, 0), Ball(-3)));
  EXPECT_TRUE(certainly_equal(g.d_pooled.at(1, 0), Ball(0)));
  EXPECT_TRUE(certainly_equal(g.d_w[0], Ball(2)));
  EXPECT_TRUE(certainly_equal(g.d_q[2], Ball(0)));
  EXPECT_TRUE(certainly_equal(g.d_w[1], Ball(0)));
}

TEST(IndexScoresBackward, a_dot_that_may_have_either_sign_is_covered_on_both_sides) {
  Ball uncertain(1e-3);
  uncertain += Ball(1.0) - log(exp(Ball(1.0)));
  arb_add_error_2exp_si(uncertain.data(), 0);
  const Array<Ball> one({1, 1}, {Ball(1)});
  const IndexScoresGradients<Ball> ball =
      index_scores_backward(Array<Ball>({1, 1, 1}, {uncertain}), one, one, true, std::nullopt, one);
  EXPECT_TRUE(contains(ball.d_pooled[0], 0.0));
  EXPECT_TRUE(contains(ball.d_q[0], 0.0));
  EXPECT_TRUE(contains(ball.d_q[0], 1.0));
  const Array<Bound> unit({1, 1}, {Bound(1)});
  const IndexScoresGradients<Bound> bound =
      index_scores_backward(Array<Bound>({1, 1, 1}, {Bound(1e-3, 1.0)}), unit, unit, true, std::nullopt, unit);
  EXPECT_EQ(bound.d_q[0].v, 1.0);
  EXPECT_GE(bound.d_q[0].e, 1.0);
}

TEST(IndexerBackward, a_quantised_output_has_no_gradient) {
  OpTable<double> table;
  add_indexer_backward_ops(table);
  const auto tensor = [](const Array<double>& x) { return Tensor::from_reals(DType::kF64, x.shape, x.data); };
  OpCall call;
  call.attributes = {{"quantize", true}, {"rotate", true}, {"amax_floor", 1e-4}};
  call.inputs = {{"x", tensor(random_array({2, 8}, 1))}, {"d_y", tensor(random_array({2, 8}, 2))}};
  EXPECT_THROW(table.at("hadamard_fp8.backward")(Call<double>(call)), InputError);
  call.attributes["quantize"] = false;
  EXPECT_EQ(table.at("hadamard_fp8.backward")(Call<double>(call)).count("d_x"), 1U);
  call.attributes = {{"kpool", 2}, {"rounding", "bf16"}};
  call.inputs = {{"k", tensor(random_array({4, 2}, 1))},
                 {"gate", tensor(random_array({4, 2}, 2))},
                 {"d_pooled", tensor(random_array({2, 2}, 3))}};
  const Results<double> results = table.at("kpool_compress.backward")(Call<double>(call));
  EXPECT_EQ(results.size(), 2U);
  EXPECT_EQ(results.count("d_gate"), 1U);
}

}  // namespace
}  // namespace assay::reference
