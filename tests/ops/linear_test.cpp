#include "reference/ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/ops/fp8.h"

namespace assay::reference {
namespace {

template <class T>
Array<T> counting(Shape shape, std::int64_t modulus) {
  Array<T> result(std::move(shape));
  for (std::int64_t i = 0; i < result.size(); ++i) result[i] = T(static_cast<double>(i * 7 % modulus - modulus / 2));
  return result;
}

TEST(Linear, bias_is_added_to_each_row) {
  const Array<double> x({2, 2}, {1, 2, 3, 4}), weight({3, 2}, {1, 0, 0, 1, 1, 1}), bias({3}, {10, 20, 30});
  EXPECT_EQ(linear(x, weight, bias).data, (std::vector<double>{11, 22, 33, 13, 24, 37}));
  EXPECT_EQ(linear(x, weight).data, (std::vector<double>{1, 2, 3, 3, 4, 7}));
}

TEST(Linear, bound_has_one_rounding_of_the_sum) {
  Context replacement;
  replacement.rounding = {0.0, 0x1p-9, 0.0};
  const ContextScope scope(replacement);
  const Bound y = linear(Array<Bound>({1, 2}, {1.0, 2.0}), Array<Bound>({1, 2}, {3.0, 4.0}))[0];
  EXPECT_EQ(y.v, 11.0);
  EXPECT_NEAR(y.e, 11.0 * 0x1p-9, 1e-9);
}

TEST(HeadLinear, every_head_has_its_own_matrix) {
  const Array<double> q({1, 2, 2}, {1, 2, 3, 4}), weight({2, 1, 2}, {1, 1, 10, 100});
  EXPECT_EQ(head_linear(q, weight).data, (std::vector<double>{3, 430}));
}

TEST(GroupedLinear, T63_empty_groups_give_nothing_and_NaN_rows_stay_in_their_rows) {
  // Offsets (0, 8, 16, 16, 32) of the report are ends of the groups: groups 0 and 3 are empty.
  const Index offsets({6}, {0, 0, 8, 16, 16, 32});
  Array<double> x = counting<double>({32, 4}, 13);
  const Array<double> weight = counting<double>({5, 3, 4}, 11);
  const Array<double> clean = grouped_linear(x, offsets, weight);
  for (std::int64_t c = 0; c < 4; ++c) x.at(7, c) = std::numeric_limits<double>::quiet_NaN();
  const Array<double> y = grouped_linear(x, offsets, weight);
  for (std::int64_t row = 0; row < 32; ++row) {
    const std::int64_t expert = row < 8 ? 1 : row < 16 ? 2 : 4;
    for (std::int64_t n = 0; n < 3; ++n) {
      double expected = 0.0;
      for (std::int64_t k = 0; k < 4; ++k) expected += x.at(row, k) * weight.at(expert, n, k);
      if (row == 7) {
        EXPECT_TRUE(std::isnan(y.at(row, n)));
      } else {
        EXPECT_EQ(y.at(row, n), expected);
        EXPECT_EQ(y.at(row, n), clean.at(row, n));
      }
    }
  }
}

TEST(GroupedLinear, T64_a_row_does_not_depend_on_the_group_sizes) {
  const std::vector<std::int64_t> sizes{0, 1, 8, 63, 64, 65, 127, 128, 129};
  Index offsets({10});
  for (std::int64_t e = 0; e < 9; ++e) offsets[e + 1] = offsets[e] + sizes[static_cast<std::size_t>(e)];
  const Array<double> x = counting<double>({offsets[9], 5}, 17), weight = counting<double>({9, 4, 5}, 19);
  const Array<double> y = grouped_linear(x, offsets, weight);
  for (std::int64_t e = 0; e < 9; ++e)
    for (std::int64_t row = offsets[e]; row < offsets[e + 1]; ++row)
      for (std::int64_t n = 0; n < 4; ++n)
        EXPECT_EQ(y.at(row, n), dot(x.row(row, 5), 1, weight.row(e * 4 + n, 5), 1, 5));
  for (int run = 0; run < 20; ++run) EXPECT_EQ(grouped_linear(x, offsets, weight).data, y.data);
}

TEST(GroupedLinear, T64_scale_of_an_all_zero_channel_does_not_matter) {
  Array<Ball> codes = counting<Ball>({129, 64}, 15);
  for (std::int64_t i = 0; i < 129; ++i) codes.at(i, 5) = Ball(0.0);
  const Array<Ball> weight = counting<Ball>({2, 3, 64}, 9);
  const Index offsets({3}, {0, 64, 129});
  const auto with_scale = [&](double zero_channel) {
    Array<Ball> scales({1, 64});
    for (std::int64_t c = 0; c < 64; ++c) scales[c] = Ball(c == 5 ? zero_channel : 0.5);
    return grouped_linear(dequantize_block(codes, scales, 129, 1), offsets, weight);
  };
  const Array<Ball> tiny = with_scale(1e-30), one = with_scale(1.0);
  for (std::int64_t i = 0; i < one.size(); ++i) EXPECT_TRUE(certainly_equal(tiny[i], one[i]));
}

TEST(GroupedLinear, offsets_are_checked) {
  const Array<double> x({4, 1}), weight({2, 1, 1});
  EXPECT_THROW(grouped_linear(x, Index({3}, {0, 3, 2}), weight), InputError);
  EXPECT_THROW(grouped_linear(x, Index({3}, {1, 2, 4}), weight), InputError);
  EXPECT_THROW(grouped_linear(x, Index({3}, {0, 2, 3}), weight), InputError);
  try {
    grouped_linear(x, Index({3}, {0, 5, 4}), weight);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "offsets[2]: 4 after 5; nondecreasing from 0 to 4");
  }
}

}  // namespace
}  // namespace assay::reference
