#include "reference/ops/head.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cases/formats.h"
#include "reference/ops/linear.h"
#include "reference/ops/norm.h"

namespace assay::reference {
namespace {

using Ids = std::vector<std::int64_t>;

Index list(Ids values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return Index({n}, std::move(values));
}

TEST(Embed, copies_rows_and_refuses_ids_outside_the_table) {
  const Array<double> table({3, 2}, {0, 1, 10, 11, 20, 21});
  EXPECT_EQ(embed(list({2, 0, 2}), table).data, (std::vector<double>{20, 21, 0, 1, 20, 21}));
  try {
    embed(list({0, 3}), table);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "ids[1]: 3; an id in [0, 3)");
  }
  EXPECT_THROW(embed(list({-1}), table), InputError);
}

TEST(CrossEntropy, equal_logits_cost_log_of_the_vocabulary) {
  const CrossEntropy<Ball> result = cross_entropy(Array<Ball>({1, 5}, {2.0, 2.0, 2.0, 2.0, 2.0}), list({3}), -100);
  EXPECT_TRUE(overlap(result.loss[0], log(Ball(5.0))));
  EXPECT_TRUE(overlap(result.lse[0], log(Ball(5.0)) + Ball(2.0)));
}

TEST(CrossEntropy, huge_logits_neither_overflow_nor_vanish) {
  const std::vector<double> rows{1e5, 0, -1e5, 1e5, 1e5, 0};
  const Array<double> logits({2, 3}, rows);
  const CrossEntropy<double> plain = cross_entropy(logits, list({2, 0}), -100);
  EXPECT_EQ(plain.loss[0], 2e5);
  EXPECT_NEAR(plain.loss[1], std::log(2.0), 1e-10);
  Array<Ball> balls({2, 3});
  for (std::int64_t i = 0; i < 6; ++i) balls[i] = Ball(logits[i]);
  const CrossEntropy<Ball> ball = cross_entropy(balls, list({2, 0}), -100);
  EXPECT_EQ(midpoint(ball.loss[0]), 2e5);
  EXPECT_TRUE(overlap(ball.loss[1], log(Ball(2.0))));
  EXPECT_LT(radius(ball.loss[1]), 1e-30);
}

TEST(CrossEntropy, the_mean_is_over_the_tokens_that_count) {
  const Array<double> logits({3, 2}, {0, 0, 5, -5, 1, 0});
  const CrossEntropy<double> result = cross_entropy(logits, list({0, -100, 1}), -100);
  EXPECT_EQ(result.loss[1], 0.0);
  EXPECT_GT(result.lse[1], 5.0);
  EXPECT_NEAR(result.mean[0], (std::log(2.0) + std::log1p(std::exp(1.0))) / 2, 1e-15);
  EXPECT_NEAR(cross_entropy(logits, list({0, 7, 1}), 7).mean[0], result.mean[0], 0.0);
}

TEST(CrossEntropy, refuses_labels_outside_the_vocabulary_and_no_counted_token) {
  const Array<double> logits({2, 2});
  EXPECT_THROW(cross_entropy(logits, list({0, 2}), -100), InputError);
  EXPECT_THROW(cross_entropy(logits, list({0, -1}), -100), InputError);
  EXPECT_THROW(cross_entropy(logits, list({-100, -100}), -100), InputError);
}

template <class T>
T loss_of_a_ramp() {
  Array<T> logits({1, 40});
  for (std::int64_t i = 0; i < 40; ++i) logits[i] = T(0.37 * static_cast<double>(i * 11 % 40) - 7.0);
  return cross_entropy(logits, list({17}), -100).mean[0];
}

TEST(CrossEntropy, all_scalars_agree) {
  const Ball ball = loss_of_a_ramp<Ball>();
  EXPECT_NEAR(loss_of_a_ramp<double>(), midpoint(ball), 1e-13);
  const Bound bound = loss_of_a_ramp<Bound>();
  EXPECT_LE(std::abs(midpoint(ball) - bound.v), bound.e);
  Context wide;
  wide.bits = 256;
  const ContextScope scope(wide);
  EXPECT_TRUE(arb_contains(ball.data(), to_ball(loss_of_a_ramp<Real>()).data()));
}

TEST(NextTokenLabels, the_last_position_has_no_label) {
  EXPECT_EQ(next_token_labels(list({10, 11, 12})).data, (Ids{11, 12, -100}));
  EXPECT_EQ(next_token_labels(list({})).data, Ids{});
}

TEST(MtpShift, T79_the_last_label_of_a_document_is_ignored) {
  const Index ids = list({10, 11, 12, 20, 21}), documents = list({0, 3, 5});
  EXPECT_EQ(mtp_shift(ids, documents, 1, -100).data, (Ids{11, 12, -100, 21, -100}));
  // The report's wrong label 0 is a token id and would be trained.
  const Index wrong = mtp_shift(ids, documents, 1, 0);
  EXPECT_EQ(wrong.data, (Ids{11, 12, 0, 21, 0}));
  const Array<double> logits({5, 30});
  EXPECT_EQ(cross_entropy(logits, mtp_shift(ids, documents, 1, -100), -100).loss[2], 0.0);
  EXPECT_GT(cross_entropy(logits, wrong, -100).loss[2], 0.0);
}

TEST(MtpShift, moves_by_any_number_of_places_and_allows_empty_documents) {
  const Index ids = list({1, 2, 3, 4, 5});
  EXPECT_EQ(mtp_shift(ids, Index(), 2, 0).data, (Ids{3, 4, 5, 0, 0}));
  EXPECT_EQ(mtp_shift(ids, list({0, 3, 3, 5}), 2, 0).data, (Ids{3, 0, 0, 0, 0}));
  EXPECT_EQ(mtp_shift(ids, Index(), 9, 7).data, (Ids{7, 7, 7, 7, 7}));
  EXPECT_THROW(mtp_shift(ids, list({0, 3, 2, 5}), 1, 0), InputError);
  EXPECT_THROW(mtp_shift(ids, list({0, 4}), 1, 0), InputError);
  EXPECT_THROW(mtp_shift(ids, Index(), -1, 0), InputError);
}

TEST(MtpInput, T77_the_embedding_half_comes_first) {
  const Array<Ball> ones({2}, {1.0, 1.0}), projection({2, 4}, {1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0});
  const Array<Ball> e = rms_norm(Array<Ball>({1, 2}, {1.0, 0.0}), ones, 1e-5);
  const Array<Ball> h = rms_norm(Array<Ball>({1, 2}, {0.0, 2.0}), ones, 1e-5);
  const auto project = [&](const Array<Ball>& first, const Array<Ball>& second) {
    return linear(Array<Ball>({1, 4}, {first[0], first[1], second[0], second[1]}), projection);
  };
  const Array<Ball> y = project(e, h), swapped = project(h, e);
  EXPECT_NEAR(midpoint(y[0]), 1.41419942045, 5e-12);
  EXPECT_EQ(midpoint(y[1]), 0.0);
  EXPECT_EQ(midpoint(swapped[0]), 0.0);
  EXPECT_NEAR(midpoint(swapped[1]), 1.41421002685, 5e-12);
}

TEST(AuxLoss, uniform_probabilities_give_the_number_of_chosen_experts) {
  const Array<Ball> loss = aux_loss(Array<Ball>({3, 8}), 2);
  EXPECT_NEAR(midpoint(loss[0]), 2.0, 1e-15);
  EXPECT_LT(radius(loss[0]), 1e-30);
}

TEST(AuxLoss, is_the_softmax_form_by_hand) {
  // Rows (ln 3, 0) and (0, ln 3): p = (3/4, 1/4) and (1/4, 3/4), each expert chosen once: 2 (1/2 1/2 + 1/2 1/2) = 1.
  // A third row (ln 3, 0): f = (2/3, 1/3), P = (7/12, 5/12): 2 (14/36 + 5/36) = 19/18. Sigmoids would differ.
  const Ball three = log(Ball(3.0)), zero(0.0);
  Context replacement = context();
  replacement.ties_are_final = true;
  const ContextScope scope(replacement);
  EXPECT_NEAR(midpoint(aux_loss(Array<Ball>({2, 2}, {three, zero, zero, three}), 1)[0]), 1.0, 1e-15);
  EXPECT_NEAR(midpoint(aux_loss(Array<Ball>({3, 2}, {three, zero, zero, three, three, zero}), 1)[0]), 19.0 / 18, 1e-15);
}

TEST(AuxLoss, T72_sums_over_288_experts_keep_all_terms) {
  // 288 equal scores: every mean probability is 1/288 and their sum, like the loss per chosen expert, is exactly 1.
  EXPECT_NEAR(aux_loss(Array<double>({4, 288}), 8)[0], 8.0, 1e-12);
  double in_bf16 = 0.0;  // what a bf16 sum of 288 scores of 0.5 gives
  for (int i = 0; i < 288; ++i) in_bf16 = rounded(bf16(), in_bf16 + 0.5);
  EXPECT_EQ(in_bf16, 128.0);
  const std::vector<Ball> half(288, Ball(0.5)), one(288, Ball(1.0));
  EXPECT_TRUE(certainly_equal(dot(half.data(), 1, one.data(), 1, 288), Ball(144.0)));
}

TEST(AuxLoss, refuses_a_bad_topk_and_no_rows) {
  EXPECT_THROW(aux_loss(Array<double>({1, 4}), 5), InputError);
  EXPECT_THROW(aux_loss(Array<double>({1, 4}), 0), InputError);
  EXPECT_THROW(aux_loss(Array<double>({0, 4}), 1), InputError);
}

}  // namespace
}  // namespace assay::reference
