// Gradients of embedding, cross entropy and the router's auxiliary loss. Cases: shared/cases/public_reports.md part 3
// (T..).
#include "reference/ops/head_backward.h"

#include "reference/ops/head.h"
#include "tests/ops/central_difference_mhc.h"

namespace assay::reference {
namespace {

using namespace proof;  // NOLINT: the words of this file

TEST(EmbedBackward, equals_central_differences) {
  const Index ids({5}, {2, 0, 2, 3, 2});
  prove(
      {seeded({5, 3}, 1)}, [&]<class T>(const Arrays<T>& in) { return Arrays<T>{embed(ids, in[0])}; },
      [&]<class T>(const Arrays<T>&, const Arrays<T>& d) { return Arrays<T>{embed_backward(ids, 5, 3, d[0])}; });
}

TEST(EmbedBackward, sums_in_token_order) {
  // 1 + 2^-53 + 2^-53 is 1 in this order and above 1 in the other.
  const Array<double> dy({3, 1}, {1, 0x1p-53, 0x1p-53});
  EXPECT_EQ(embed_backward(Index({3}, {0, 0, 0}), 1, 1, dy)[0], 1.0);
  EXPECT_GT(0x1p-53 + 0x1p-53 + 1.0, 1.0);
}

TEST(EmbedBackward, the_padding_row_gets_exactly_zero) {
  const Array<double> d = embed_backward(Index({3}, {1, 0, 1}), 2, 2, seeded({3, 2}, 1), std::int64_t{1});
  EXPECT_EQ(d.at(1, 0), 0.0);
  EXPECT_EQ(d.at(1, 1), 0.0);
  EXPECT_NE(d.at(0, 0), 0.0);
}

TEST(EmbedBackward, rejects_an_id_out_of_range) {
  EXPECT_THROW(embed_backward(Index({1}, {2}), 2, 1, seeded({1, 1}, 1)), InputError);
}

TEST(CrossEntropyBackward, equals_central_differences_with_ignored_labels) {
  const Index labels({4}, {1, -100, 0, 4});
  prove(
      {seeded({4, 5}, 1, 3.0)},
      [&]<class T>(const Arrays<T>& in) {
        CrossEntropy<T> y = cross_entropy(in[0], labels, -100);
        return Arrays<T>{y.loss, y.mean, y.lse};
      },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        return Arrays<T>{cross_entropy_backward(in[0], labels, -100, d[0], d[1], d[2])};
      });
}

TEST(CrossEntropyBackward, an_ignored_token_gets_exactly_zero_from_the_loss) {
  const Array<double> d = cross_entropy_backward(seeded({2, 3}, 1), Index({2}, {-100, 2}), -100, seeded({2}, 2),
                                                 Array<double>({1}, {1.0}), Array<double>());
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(d.at(0, i), 0.0);
  EXPECT_NEAR(d.at(1, 0) + d.at(1, 1) + d.at(1, 2), 0.0, 1e-15);
}

TEST(CrossEntropyBackward, huge_logits_stay_finite) {
  const Array<double> d = cross_entropy_backward(Array<double>({1, 3}, {1e4, -1e4, 0.0}), Index({1}, {1}), -100,
                                                 Array<double>({1}, {1.0}), Array<double>(), Array<double>());
  EXPECT_EQ(d.data, (std::vector<double>{1.0, -1.0, 0.0}));
}

TEST(CrossEntropyBackward, rejects_what_the_forward_rejects) {
  const Array<double> logits = seeded({1, 3}, 1), none;
  EXPECT_THROW(cross_entropy_backward(logits, Index({1}, {3}), -100, none, none, none), InputError);
  EXPECT_THROW(cross_entropy_backward(logits, Index({1}, {-100}), -100, none, none, none), InputError);
}

TEST(AuxLossBackward, equals_central_differences) {
  for (const std::int64_t topk : {1, 2})
    prove(
        {seeded({4, 5}, 1)}, [&]<class T>(const Arrays<T>& in) { return Arrays<T>{aux_loss(in[0], topk)}; },
        [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
          return Arrays<T>{aux_loss_backward(in[0], topk, d[0])};
        });
}

TEST(AuxLossBackward, is_zero_when_every_row_chooses_every_expert) {
  const Array<double> d = aux_loss_backward(seeded({4, 5}, 1), 5, Array<double>({1}, {1.0}));
  for (const double value : d.data) EXPECT_NEAR(value, 0.0, 1e-15);
}

/// Gradient of rows [begin, end) when the fractions and the number of rows are given, as a rank or a microbatch sees
/// it.
Array<double> local_gradient(const Array<double>& logits, std::int64_t begin, std::int64_t end,
                             const std::vector<double>& fractions, double rows) {
  const std::int64_t experts = logits.dim(1);
  Array<double> d({end - begin, experts});
  for (std::int64_t r = begin; r < end; ++r) {
    double total = 0.0, mean = 0.0;
    for (std::int64_t e = 0; e < experts; ++e) total += std::exp(logits.at(r, e));
    const auto p = [&](std::int64_t e) { return std::exp(logits.at(r, e)) / total; };
    for (std::int64_t e = 0; e < experts; ++e) mean += p(e) * fractions[static_cast<std::size_t>(e)];
    for (std::int64_t e = 0; e < experts; ++e)
      d.at(r - begin, e) = p(e) * (fractions[static_cast<std::size_t>(e)] - mean) * static_cast<double>(experts) / rows;
  }
  return d;
}

/// How often each expert is among the two best of rows [begin, end).
std::vector<std::int64_t> counts(const Array<double>& logits, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(logits.dim(1)));
  for (std::int64_t r = begin; r < end; ++r)
    for (std::int64_t e = 0; e < logits.dim(1); ++e) {
      std::int64_t better = 0;
      for (std::int64_t other = 0; other < logits.dim(1); ++other) better += logits.at(r, other) > logits.at(r, e);
      result[static_cast<std::size_t>(e)] += better < 2;
    }
  return result;
}

std::vector<double> over(const std::vector<std::int64_t>& numbers, double rows) {
  std::vector<double> result;
  for (const std::int64_t n : numbers) result.push_back(static_cast<double>(n) / rows);
  return result;
}

double largest_difference(const Array<double>& part, const Array<double>& whole, std::int64_t begin) {
  double largest = 0.0;
  for (std::int64_t i = 0; i < part.size(); ++i)
    largest = std::max(largest, std::abs(part[i] - whole[begin * whole.dim(1) + i]));
  return largest;
}

TEST(AuxLossBackward, T73_a_gradient_does_not_depend_on_how_tokens_are_split) {
  const Array<double> logits = seeded({8, 6}, 11);
  const Array<double> whole = aux_loss_backward(logits, 2, Array<double>({1}, {1.0}));
  const std::vector<double> global = over(counts(logits, 0, 8), 8.0);
  for (const std::int64_t cut : {4, 3}) {  // two ranks of a sequence, then of a context split
    EXPECT_LT(largest_difference(local_gradient(logits, 0, cut, global, 8.0), whole, 0), 1e-16);
    EXPECT_LT(largest_difference(local_gradient(logits, cut, 8, global, 8.0), whole, cut), 1e-16);
    // Fractions of the rank's own tokens, or its own row count, are another loss.
    const double own = static_cast<double>(cut);
    EXPECT_GT(largest_difference(local_gradient(logits, 0, cut, over(counts(logits, 0, cut), own), 8.0), whole, 0),
              1e-3);
    EXPECT_GT(largest_difference(local_gradient(logits, 0, cut, global, own), whole, 0), 1e-3);
  }
}

TEST(AuxLossBackward, T73_b_the_local_count_of_3_and_5_tokens_is_3_before_and_8_after_an_aliased_reduce) {
  const Array<double> logits = seeded({8, 6}, 12);
  const Array<double> whole = aux_loss_backward(logits, 2, Array<double>({1}, {1.0}));
  const std::vector<std::int64_t> first = counts(logits, 0, 3), second = counts(logits, 3, 8);
  std::int64_t local_tokens = 0, reduced_tokens = 0;
  for (std::size_t e = 0; e < first.size(); ++e) {
    local_tokens += first[e];
    reduced_tokens += first[e] + second[e];
  }
  EXPECT_EQ(local_tokens / 2, 3);
  EXPECT_EQ(reduced_tokens / 2, 8);
  // Rank 0 rescales its gradient by local / global tokens when the mean over ranks is taken twice: with the aliased
  // count the factor 3/8 becomes 1.
  const std::vector<double> global = over(counts(logits, 0, 8), 8.0);
  Array<double> own_mean = local_gradient(logits, 0, 3, global, 3.0);
  EXPECT_GT(largest_difference(own_mean, whole, 0), 1e-3);
  for (double& value : own_mean.data) value *= 3.0 / 8.0;
  EXPECT_LT(largest_difference(own_mean, whole, 0), 1e-16);
}

TEST(AuxLossBackward, T73_c_microbatches_of_4_4_4_and_6_2_4_tokens_give_the_same_gradient) {
  const Array<double> logits = seeded({12, 6}, 13);
  const Array<double> whole = aux_loss_backward(logits, 2, Array<double>({1}, {1.0}));
  const std::vector<double> global = over(counts(logits, 0, 12), 12.0);
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{4, 4, 4}, {6, 2, 4}}) {
    std::int64_t begin = 0;
    double worst = 0.0, worst_of_equal_weights = 0.0;
    for (const std::int64_t size : sizes) {
      Array<double> part = local_gradient(logits, begin, begin + size, global, static_cast<double>(size));
      Array<double> equal = part;
      for (double& value : part.data) value *= static_cast<double>(size) / 12.0;
      for (double& value : equal.data) value /= 3.0;
      worst = std::max(worst, largest_difference(part, whole, begin));
      worst_of_equal_weights = std::max(worst_of_equal_weights, largest_difference(equal, whole, begin));
      begin += size;
    }
    EXPECT_LT(worst, 1e-16);
    if (sizes[0] == 6) {
      EXPECT_GT(worst_of_equal_weights, 1e-3);
    }
  }
}

TEST(AuxLossBackward, ties_count_the_lowest_index) {
  const Array<double> equal({1, 3}, {0, 0, 0});
  const Array<double> d = aux_loss_backward(equal, 1, Array<double>({1}, {1.0}));
  EXPECT_NEAR(d[0], 2.0 / 3.0, 1e-15);  // p = 1/3, g = (3, 0, 0)
  EXPECT_NEAR(d[1], -1.0 / 3.0, 1e-15);
  EXPECT_THROW(aux_loss_backward(equal, 4, Array<double>({1}, {1.0})), InputError);
}

TEST(HeadBackward, calls) {
  OpTable<double> table;
  add_head_backward_ops(table);
  const Tensor ids = Tensor::from_integers(DType::kI64, {2}, std::vector<std::int64_t>{1, 1});
  const Array<double> dx = seeded({2, 3}, 1), rows = seeded({2, 3}, 2);
  const OpSpec embed_spec = backward_spec("embed", {"x"}),
               loss_spec = backward_spec("cross_entropy", {"loss", "lse", "mean"}),
               aux_spec = backward_spec("aux_loss", {"loss"});
  const OpCall embedding = make_call(embed_spec, {}, {{"ids", ids}, {"table", tensor(rows)}, {"d_x", tensor(dx)}});
  EXPECT_EQ(real_result(table.at("embed.backward")(Call<double>(embedding)), "d_table").data,
            embed_backward(Index({2}, {1, 1}), 2, 3, dx).data);
  const Array<double> one({1}, {1.0}), none;
  const OpCall loss = make_call(loss_spec, {}, {{"logits", tensor(rows)}, {"labels", ids}, {"d_mean", tensor(one)}});
  EXPECT_EQ(real_result(table.at("cross_entropy.backward")(Call<double>(loss)), "d_logits").data,
            cross_entropy_backward(rows, Index({2}, {1, 1}), -100, none, one, none).data);
  const OpCall aux = make_call(aux_spec, {{"topk", 1}}, {{"logits", tensor(rows)}, {"d_loss", tensor(one)}});
  EXPECT_EQ(real_result(table.at("aux_loss.backward")(Call<double>(aux)), "d_logits").data,
            aux_loss_backward(rows, 1, one).data);
}

}  // namespace
}  // namespace assay::reference
