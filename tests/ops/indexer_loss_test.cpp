#include "reference/ops/indexer_loss.h"

#include "tests/ops/central_difference_attention.h"

namespace assay::reference {
namespace {

constexpr std::int64_t kRows = 4, kHeads = 3, kTokens = 5;
// Causal-like, one row that sees one token, one that sees nothing.
const Index kVisible({kRows, kTokens}, {1, 1, 1, 1, 1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0});

/// Positive numbers: the target is normalised, so that they need not be probabilities.
Array<double> attention() {
  Array<double> x = random_array({kRows, kHeads, kTokens}, 7);
  for (double& value : x.data) value = std::abs(value);
  return x;
}

TEST(IndexerLoss, gradients_are_those_of_loss_and_row_losses) {
  for (const std::optional<std::int64_t> rows : {std::optional<std::int64_t>(), std::optional<std::int64_t>(1)})
    for (const Index& visible : {kVisible, Index()})
      prove_backward(
          {random_array({kRows, kTokens}, 1)},
          [&]<class T>(const Arrays<T>& in) {
            IndexerLoss<T> l = indexer_loss(in[0], widened<T>({attention()})[0], visible, 0.7, rows);
            return Arrays<T>{l.loss, l.row_loss};
          },
          [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
            return Arrays<T>{
                indexer_loss_backward(in[0], widened<T>({attention()})[0], visible, 0.7, rows, d[0], d[1])};
          });
}

TEST(IndexerLoss, is_a_mean_over_the_rows_that_see_a_token) {
  const Array<double> scores = random_array({kRows, kTokens}, 1);
  const IndexerLoss<double> mean = indexer_loss(scores, attention(), kVisible, 0.5, std::nullopt);
  const IndexerLoss<double> sum = indexer_loss(scores, attention(), kVisible, 0.5, 1);
  EXPECT_NEAR(mean.loss[0] * 3, sum.loss[0], 1e-15);
  EXPECT_EQ(mean.row_loss[3], 0.0);
  EXPECT_NEAR(mean.row_loss[2], 0.0, 1e-15);  // one token: both distributions are 1
  EXPECT_NEAR(sum.loss[0], 0.5 * (mean.row_loss[0] + mean.row_loss[1] + mean.row_loss[2]), 1e-15);
}

TEST(IndexerLoss, known_answer_of_one_row) {
  // Target (3/4, 1/4) from two heads, equal scores: 3/4 ln(3/2) + 1/4 ln(1/2) = 0.13081203594113697; gradients
  // 1/2 - 3/4 and 1/2 - 1/4.
  const Array<Ball> scores({1, 2}, {Ball(5), Ball(5)});
  const Array<Ball> heads({1, 2, 2}, {Ball(1), Ball(0), Ball(0.5), Ball(0.5)});
  const Array<Ball> one({1}, {Ball(1)});
  const IndexerLoss<Ball> loss = indexer_loss(scores, heads, Index(), 1.0, std::nullopt);
  EXPECT_NEAR(midpoint(loss.loss[0]), 0.13081203594113697, 1e-16);
  const Array<Ball> d = indexer_loss_backward(scores, heads, Index(), 1.0, std::nullopt, one, Array<Ball>());
  EXPECT_TRUE(contains(d[0], -0.25));
  EXPECT_TRUE(contains(d[1], 0.25));
  // Heads that are summed already give the same.
  const Array<Ball> summed({1, 1, 2}, {Ball(1.5), Ball(0.5)});
  EXPECT_TRUE(overlap(indexer_loss(scores, summed, Index(), 1.0, std::nullopt).loss[0], loss.loss[0]));
}

TEST(IndexerLoss, a_target_of_zero_costs_nothing_and_a_row_without_attention_has_no_gradient) {
  const Array<double> scores({2, 2}, {0, 0, 1, 2}), heads({2, 1, 2}, {1, 0, 0, 0});
  const IndexerLoss<double> loss = indexer_loss(scores, heads, Index(), 1.0, 1);
  EXPECT_NEAR(loss.row_loss[0], std::log(2.0), 1e-15);
  EXPECT_EQ(loss.row_loss[1], 0.0);
  const Array<double> d = indexer_loss_backward(scores, heads, Index(), 1.0, 1, Array<double>({1}, {1}), {});
  EXPECT_EQ(d[2], 0.0);
  EXPECT_EQ(d[3], 0.0);
  EXPECT_THROW(indexer_loss(scores, heads, Index(), 1.0, 0), InputError);
}

TEST(IndexerLoss, bindings_read_rows_and_visible) {
  OpTable<double> table;
  add_indexer_loss_ops(table);
  const auto tensor = [](const Array<double>& x) { return Tensor::from_reals(DType::kF64, x.shape, x.data); };
  const Array<double> scores = random_array({kRows, kTokens}, 1);
  OpCall call = make_call(op_named("indexer_loss"), {{"coefficient", 0.5}},
                          {{"scores", tensor(scores)},
                           {"attention", tensor(attention())},
                           {"visible", Tensor::from_integers(DType::kI64, kVisible.shape, kVisible.data)}});
  const Results<double> results = table.at("indexer_loss")(Call<double>(call));
  EXPECT_EQ(std::get<Array<double>>(results.at("loss"))[0],
            indexer_loss(scores, attention(), kVisible, 0.5, std::nullopt).loss[0]);
  call.inputs["d_loss"] = tensor(Array<double>({1}, {1}));
  const Results<double> gradients = table.at("indexer_loss.backward")(Call<double>(call));
  EXPECT_EQ(std::get<Array<double>>(gradients.at("d_scores")).shape, scores.shape);
}

}  // namespace
}  // namespace assay::reference
