#include "reference/ops/vision_backward.h"

#include "reference/ops/vision.h"
#include "tests/ops/central_difference_attention.h"

namespace assay::reference {
namespace {

TEST(PatchEmbedBackward, gradients_are_those_of_the_linear_map) {
  prove_backward(
      {random_array({5, 4}, 1), random_array({3, 4}, 2), random_array({3}, 3)},
      []<class T>(const Arrays<T>& in) { return Arrays<T>{patch_embed(in[0], in[1], in[2])}; },
      []<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        const LinearGradients<T> g = patch_embed_backward(in[0], in[1], true, d[0]);
        return Arrays<T>{g.d_x, g.d_weight, g.d_bias};
      });
}

TEST(Rope2dBackward, gradients_are_those_of_the_rotation) {
  // Two frames of 2 x 2 patches and a far one.
  const Index positions({5, 2}, {0, 0, 0, 1, 1, 0, 1, 1, 29, 31});
  prove_backward(
      {random_array({5, 2, 8}, 1)},
      [&]<class T>(const Arrays<T>& in) { return Arrays<T>{rope_2d(in[0], positions, 10000.0)}; },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        return Arrays<T>{rope_2d_backward(in[0], positions, 10000.0, d[0])};
      });
}

TEST(SegmentAttentionBackward, gradients_are_those_of_two_frames_of_different_length) {
  const Index frames({3}, {0, 4, 6});
  prove_backward(
      {random_array({6, 2, 4}, 1), random_array({6, 2, 4}, 2), random_array({6, 2, 4}, 3)},
      [&]<class T>(const Arrays<T>& in) {
        const SegmentAttention<T> a = segment_attention(in[0], in[1], in[2], frames, 0.5);
        return Arrays<T>{a.o, a.lse};
      },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        const AttentionGradients<T> g = segment_attention_backward(in[0], in[1], in[2], frames, 0.5, d[0], d[1]);
        return Arrays<T>{g.d_q, g.d_k, g.d_v};
      });
}

TEST(SegmentAttentionBackward, no_gradient_crosses_frames) {
  const Index frames({3}, {0, 4, 6});
  Array<double> d_o = random_array({6, 2, 4}, 4);
  std::fill_n(d_o.data.begin(), 4 * 2 * 4, 0.0);
  const AttentionGradients<double> g = segment_attention_backward(
      random_array({6, 2, 4}, 1), random_array({6, 2, 4}, 2), random_array({6, 2, 4}, 3), frames, 0.5, d_o, {});
  for (const Array<double>& x : {g.d_q, g.d_k, g.d_v}) {
    for (std::int64_t i = 0; i < 4 * 2 * 4; ++i) EXPECT_EQ(x[i], 0.0);
    EXPECT_NE(x[4 * 2 * 4], 0.0);
  }
  EXPECT_THROW(segment_attention_backward(d_o, d_o, d_o, Index({3}, {0, 6, 6}), 0.5, d_o, {}), InputError);
}

TEST(GeluBackward, gradients_are_those_of_the_exact_form) {
  prove_backward(
      {random_array({3, 7}, 1)}, []<class T>(const Arrays<T>& in) { return Arrays<T>{gelu(in[0])}; },
      []<class T>(const Arrays<T>& in, const Arrays<T>& d) { return Arrays<T>{gelu_backward(in[0], d[0])}; });
}

TEST(GeluBackward, is_one_half_at_0_and_the_distribution_plus_density_at_1) {
  const Array<Ball> x({2}, {Ball(0), Ball(1)}), ones({2}, {Ball(1), Ball(1)});
  const Array<Ball> d = gelu_backward(x, ones);
  EXPECT_TRUE(contains(d[0], 0.5));
  // Phi(1) + phi(1) = 0.841344746068542949 + 0.241970724519143349 (tables of the normal distribution).
  EXPECT_NEAR(midpoint(d[1]), 1.083315470587686298, 1e-15);
  EXPECT_LT(radius(d[1]), 1e-36);
}

void prove_downsample(bool has_bias) {
  Arrays<double> inputs = {random_array({8, 3}, 1), random_array({2, 3, 2, 2}, 2)};
  if (has_bias) inputs.push_back(random_array({2}, 3));
  prove_backward(
      inputs,
      [&]<class T>(const Arrays<T>& in) { return Arrays<T>{downsample(in[0], in[1], has_bias ? in[2] : Array<T>())}; },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        LinearGradients<T> g = downsample_backward(in[0], in[1], has_bias, d[0]);
        Arrays<T> result{g.d_x, g.d_weight};
        if (has_bias) result.push_back(g.d_bias);
        return result;
      });
}

TEST(DownsampleBackward, gradients_are_those_of_the_convolution_with_bias) { prove_downsample(true); }

TEST(DownsampleBackward, gradients_are_those_of_the_convolution_without_bias) { prove_downsample(false); }

TEST(FeatureScatterBackward, gradients_are_those_of_the_copy) {
  const Index ids({5}, {7, 9, 3, 9, 9});
  prove_backward(
      {random_array({5, 3}, 1), random_array({3, 3}, 2)},
      [&]<class T>(const Arrays<T>& in) { return Arrays<T>{feature_scatter(in[0], ids, 9, in[1])}; },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        const FeatureScatterGradients<T> g = feature_scatter_backward(in[0], ids, 9, in[1], d[0]);
        return Arrays<T>{g.d_x, g.d_features};
      });
  const Array<double> x = random_array({5, 3}, 1), dy = random_array({5, 3}, 3);
  const FeatureScatterGradients<double> g = feature_scatter_backward(x, ids, 9, random_array({3, 3}, 2), dy);
  for (std::int64_t c = 0; c < 3; ++c) {
    EXPECT_EQ(g.d_x.at(0, c), dy.at(0, c));
    EXPECT_EQ(g.d_x.at(1, c), 0.0);
    EXPECT_EQ(g.d_features.at(1, c), dy.at(3, c));
  }
  EXPECT_THROW(feature_scatter_backward(x, ids, 8, x, dy), InputError);
}

TEST(VisionBackward, bindings_name_every_op) {
  OpTable<double> table;
  add_vision_backward_ops(table);
  for (const char* op : {"patch_embed", "rope_2d", "segment_attention", "gelu", "downsample", "feature_scatter"})
    EXPECT_EQ(table.count(std::string(op) + ".backward"), 1U) << op;
  const auto tensor = [](const Array<double>& x) { return Tensor::from_reals(DType::kF64, x.shape, x.data); };
  OpCall call;
  call.inputs = {{"x", tensor(random_array({4, 3}, 1))}, {"weight", tensor(random_array({2, 3, 2, 2}, 2))}};
  const Results<double> results = table.at("downsample.backward")(Call<double>(call));
  EXPECT_EQ(results.size(), 2U);
  EXPECT_EQ(std::get<Array<double>>(results.at("d_weight")).shape, (Shape{2, 3, 2, 2}));
}

}  // namespace
}  // namespace assay::reference
