#include "reference/ops/vision.h"

#include <gtest/gtest.h>

#include <cmath>

namespace assay::reference {
namespace {

using Ids = std::vector<std::int64_t>;

TEST(Rope2d, the_origin_is_not_rotated_and_lengths_are_kept) {
  Array<double> x({2, 1, 8}, {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8});
  const Array<double> y = rope_2d(x, Index({2, 2}, {0, 0, 3, 5}), 10000.0);
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(y[i], x[i]);
  EXPECT_NEAR(dot(y.row(1, 8), 1, y.row(1, 8), 1, 8), 204.0, 1e-12);
}

TEST(Rope2d, row_frequencies_come_first_and_pairs_are_half_a_head_apart) {
  // Head of 8: frequencies 1 and 10000^(-2/4) = 0.01; channels 0, 1 turn with the row, 2, 3 with the column.
  const auto turned = [](std::int64_t channel, std::int64_t row, std::int64_t column) {
    Array<Ball> x({1, 1, 8});
    x[channel] = Ball(1.0);
    return rope_2d(x, Index({1, 2}, {row, column}), 10000.0);
  };
  const double h = 3, w = 5;
  const std::vector<double> angles{h, 0.01 * h, w, 0.01 * w};
  for (std::int64_t i = 0; i < 4; ++i) {
    const double angle = angles[static_cast<std::size_t>(i)];
    const Array<Ball> first = turned(i, 3, 5), second = turned(i + 4, 3, 5);
    EXPECT_NEAR(midpoint(first[i]), std::cos(angle), 1e-15);
    EXPECT_NEAR(midpoint(first[i + 4]), std::sin(angle), 1e-15);
    EXPECT_NEAR(midpoint(second[i]), -std::sin(angle), 1e-15);
    EXPECT_NEAR(midpoint(second[i + 4]), std::cos(angle), 1e-15);
  }
  EXPECT_THROW(rope_2d(Array<Ball>({1, 1, 6}), Index({1, 2}, {0, 0}), 10000.0), InputError);
}

TEST(Rope2d, products_depend_on_differences_of_positions_only) {
  Array<double> x({2, 1, 64});
  for (std::int64_t i = 0; i < 128; ++i) x[i] = static_cast<double>(i * 37 % 23) - 11.0;
  const auto product = [&](const Ids& positions) {
    const Array<double> y = rope_2d(x, Index({2, 2}, positions), 10000.0);
    return dot(y.row(0, 64), 1, y.row(1, 64), 1, 64);
  };
  EXPECT_NEAR(product({2, 3, 5, 1}), product({12, 23, 15, 21}), 1e-10);
  EXPECT_GT(std::abs(product({2, 3, 5, 1}) - product({2, 3, 1, 5})), 1.0);
}

TEST(SegmentAttention, equal_keys_give_the_mean_of_the_own_segment) {
  const Array<Ball> q({5, 1, 1}), k({5, 1, 1}), v({5, 1, 1}, {1.0, 3.0, 10.0, 20.0, 60.0});
  const SegmentAttention<Ball> result = segment_attention(q, k, v, Index({3}, {0, 2, 5}), 0.125);
  const std::vector<double> expected{2, 2, 30, 30, 30};
  for (std::int64_t t = 0; t < 5; ++t) {
    EXPECT_NEAR(midpoint(result.o[t]), expected[static_cast<std::size_t>(t)], 1e-14);
    EXPECT_TRUE(overlap(result.lse[t], log(Ball(t < 2 ? 2.0 : 3.0))));
  }
}

TEST(SegmentAttention, is_the_masked_attention_of_the_whole_sequence) {
  const std::int64_t tokens = 7, heads = 2, width = 4;
  Array<double> q({tokens, heads, width}), k = q, v = q;
  for (std::int64_t i = 0; i < q.size(); ++i) {
    q[i] = std::sin(static_cast<double>(i));
    k[i] = std::cos(static_cast<double>(3 * i));
    v[i] = static_cast<double>(i % 11);
  }
  const Index cu_seqlens({4}, {0, 3, 4, 7});
  const std::vector<int> segment{0, 0, 0, 1, 2, 2, 2};
  const SegmentAttention<double> result = segment_attention(q, k, v, cu_seqlens, 0.5);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t h = 0; h < heads; ++h) {
      double total = 0.0;
      std::vector<double> mixed(width, 0.0);
      for (std::int64_t s = 0; s < tokens; ++s) {
        if (segment[static_cast<std::size_t>(s)] != segment[static_cast<std::size_t>(t)]) continue;
        const double p = std::exp(0.5 * dot(&q.at(t, h, 0), 1, &k.at(s, h, 0), 1, width));
        total += p;
        for (std::int64_t d = 0; d < width; ++d) mixed[static_cast<std::size_t>(d)] += p * v.at(s, h, d);
      }
      EXPECT_NEAR(result.lse.at(t, h), std::log(total), 1e-13);
      for (std::int64_t d = 0; d < width; ++d)
        EXPECT_NEAR(result.o.at(t, h, d), mixed[static_cast<std::size_t>(d)] / total, 1e-13);
    }
}

TEST(SegmentAttention, refuses_segments_that_do_not_increase) {
  const Array<double> x({4, 1, 1});
  EXPECT_THROW(segment_attention(x, x, x, Index({3}, {0, 0, 4}), 1.0), InputError);
  EXPECT_THROW(segment_attention(x, x, x, Index({2}, {0, 3}), 1.0), InputError);
}

TEST(Gelu, is_the_exact_form) {
  const Array<Ball> y = gelu(Array<Ball>({4}, {1.0, -1.0, 0.0, -10.0}));
  EXPECT_NEAR(midpoint(y[0]), 0.8413447460685429, 1e-15);
  EXPECT_NEAR(midpoint(y[1]), -0.15865525393145707, 1e-16);
  EXPECT_EQ(midpoint(y[2]), 0.0);
  EXPECT_NEAR(midpoint(y[3]), -7.619853024160527e-23, 1e-37);
  const double tanh_form = 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * 1.044715));
  EXPECT_GT(std::abs(tanh_form - midpoint(y[0])), 1e-4);
}

TEST(Downsample, weights_meet_channels_rows_and_columns_in_order) {
  // Two channels, weight digits 1 .. 8 in (channel, row, column); each patch holds one 1.
  const Array<double> weight({1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), bias({1}, {100});
  for (std::int64_t patch = 0; patch < 4; ++patch)
    for (std::int64_t channel = 0; channel < 2; ++channel) {
      Array<double> x({8, 2});
      x.at(4 + patch, channel) = 1.0;
      const Array<double> y = downsample(x, weight, bias);
      EXPECT_EQ(y.data, (std::vector<double>{100, 101.0 + static_cast<double>(channel * 4 + patch)}));
    }
  EXPECT_THROW(downsample(Array<double>({6, 2}), weight, bias), InputError);
}

TEST(FeatureScatter, features_go_to_placeholders_in_order) {
  const Array<double> x({4, 1}, {1, 2, 3, 4}), features({2, 1}, {10, 20});
  EXPECT_EQ(feature_scatter(x, Index({4}, {5, 9, 6, 9}), 9, features).data, (std::vector<double>{1, 10, 3, 20}));
  EXPECT_THROW(feature_scatter(x, Index({4}, {5, 9, 9, 9}), 9, features), InputError);
  EXPECT_THROW(feature_scatter(x, Index({4}, {5, 6, 7, 9}), 9, features), InputError);
}

TEST(PatchPositions, blocks_of_patches_row_by_row_repeated_for_every_frame) {
  const PatchPositions result = patch_positions(Index({2, 3}, {2, 2, 4, 1, 4, 2}), 2);
  const Ids frame{0, 0, 0, 1, 1, 0, 1, 1, 0, 2, 0, 3, 1, 2, 1, 3};
  Ids expected = frame;
  expected.insert(expected.end(), frame.begin(), frame.end());
  for (const std::int64_t number : {0, 0, 0, 1, 1, 0, 1, 1, 2, 0, 2, 1, 3, 0, 3, 1}) expected.push_back(number);
  EXPECT_EQ(result.positions.data, expected);
  EXPECT_EQ(result.positions.shape, (Shape{24, 2}));
  EXPECT_EQ(result.cu_seqlens.data, (Ids{0, 8, 16, 24}));
  EXPECT_THROW(patch_positions(Index({1, 3}, {1, 3, 4}), 2), InputError);
}

}  // namespace
}  // namespace assay::reference
