#include "reference/ops/select.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "reference/decide.h"
#include "reference/ops/indexer.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

using Ids = std::vector<std::int64_t>;

template <class T>
Array<T> array(Shape shape, const std::vector<double>& values) {
  return Array<T>(std::move(shape), std::vector<T>(values.begin(), values.end()));
}

Index index(const Ids& values) { return Index({static_cast<std::int64_t>(values.size())}, values); }

std::set<std::int64_t> tokens_of(const Selection& selection, std::int64_t row) {
  const std::int64_t width = selection.ids.dim(1);
  std::set<std::int64_t> result(selection.ids.row(row, width), selection.ids.row(row, width) + width);
  result.erase(-1);
  return result;
}

std::set<std::int64_t> stretch(std::int64_t first, std::int64_t last) {
  std::set<std::int64_t> result;
  for (std::int64_t i = first; i <= last; ++i) result.insert(i);
  return result;
}

/// One document with pools 0, kpool, 2 kpool, ... and a query at its end.
Selection at_end(const std::vector<double>& scores, std::int64_t tokens, std::int64_t topk, std::int64_t kpool,
                 bool tail = true) {
  Ids first;
  for (std::size_t p = 0; p < scores.size(); ++p) first.push_back(static_cast<std::int64_t>(p) * kpool);
  return select_tokens(array<double>({1, static_cast<std::int64_t>(scores.size())}, scores), index(first), index({0}),
                       index({tokens}), topk, kpool, tail);
}

TEST(SelectTokens, T34_short_rows_leave_minus_one_in_unused_places) {
  // Pools 6 and 10 belong to another document.
  const Selection row =
      select_tokens(array<double>({1, 3}, {1, 2, 3}), index({0, 6, 10}), index({0}), index({6}), 8, 4, true);
  EXPECT_EQ(row.ids.data, (Ids{0, 1, 2, 3, -1, -1, -1, -1, 4, 5, -1}));
  EXPECT_EQ(row.pools.data, (Ids{0, -1}));
  EXPECT_EQ(tokens_of(row, 0), stretch(0, 5));
  // A stale 7 in the unused place would expand to 28..31.
  const std::int64_t poisoned = 7;
  for (std::int64_t s = 0; s < 4; ++s) EXPECT_EQ(tokens_of(row, 0).count(poisoned * 4 + s), 0U);
}

TEST(SelectTokens, T38_query_12_of_two_documents_sees_its_own_pool_and_tail) {
  const Array<double> k({13, 1});
  const Index first = kpool_compress(k, {}, {}, 4, index({0, 6, 13})).first_token;
  const Selection row = select_tokens(array<double>({1, 2}, {5, 1}), first, index({6}), index({13}), 4, 4, true);
  EXPECT_EQ(tokens_of(row, 0), stretch(6, 12));
  EXPECT_EQ(row.pools.data, (Ids{1})) << "the other document's pool has the higher score";
  // Global pools: {4..7} is inside no document, {8..11} is seen, and the tokens 6 and 7 are lost.
  const Selection wrong =
      select_tokens(array<double>({1, 3}, {5, 4, 1}), index({0, 4, 8}), index({0}), index({13}), 4, 4, true);
  EXPECT_NE(tokens_of(wrong, 0), stretch(6, 12));
  const Selection mixed =
      select_tokens(array<double>({1, 3}, {1, 5, 1}), index({0, 4, 8}), index({0}), index({13}), 4, 4, false);
  EXPECT_EQ(tokens_of(mixed, 0), stretch(4, 7)) << "mixes the documents";
}

TEST(SelectTokens, T38_visible_pools_at_position_p_are_p_plus_1_div_4) {
  for (std::int64_t p = 0; p < 40; ++p) {
    std::int64_t visible = 0;
    for (std::int64_t first = 0; first < 40; first += 4) visible += pool_visible(first, 4, 0, p + 1) ? 1 : 0;
    EXPECT_EQ(visible, (p + 1) / 4);
  }
}

TEST(SelectTokens, T38_left_padding_selects_from_the_first_real_token) {
  const Visibility visible = causal_visibility(index({2, 8}), index({2, 8}));
  EXPECT_EQ(visible.start.data, (Ids{0, 0, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(visible.end.data, (Ids{0, 0, 3, 4, 5, 6, 7, 8}));
  const Index first = kpool_compress(Array<double>({8, 1}), {}, {}, 4, index({2, 8})).first_token;
  const Selection rows = select_tokens(Array<double>({8, 1}), first, visible.start, visible.end, 4, 4, true);
  EXPECT_TRUE(tokens_of(rows, 0).empty());
  EXPECT_TRUE(tokens_of(rows, 1).empty());
  EXPECT_EQ(tokens_of(rows, 7), stretch(2, 7)) << "pool {2..5}, tail {6, 7}, never slot 0 or 1";
}

TEST(SelectTokens, T38_zigzag_rows_choose_what_the_whole_sequence_chooses) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  const std::int64_t tokens = 32, pools = 8;
  Array<double> scores({tokens, pools});
  for (double& value : scores.data) value = normal(random);
  Ids first;
  for (std::int64_t p = 0; p < pools; ++p) first.push_back(4 * p);
  const Visibility visible = causal_visibility(index({0, tokens}), index({0, tokens}));
  const Selection whole = select_tokens(scores, index(first), visible.start, visible.end, 8, 4, true);
  // Two ranks with chunks (0, 3) and (1, 2) of 8 tokens each.
  for (const std::vector<std::int64_t>& chunks : {Ids{0, 3}, Ids{1, 2}}) {
    Ids positions, start, end;
    std::vector<double> local;
    for (const std::int64_t chunk : chunks)
      for (std::int64_t t = 8 * chunk; t < 8 * chunk + 8; ++t) {
        positions.push_back(t);
        start.push_back(0);
        end.push_back(t + 1);
        for (std::int64_t p = 0; p < pools; ++p) local.push_back(scores.at(t, p));
      }
    const Selection rank =
        select_tokens(array<double>({16, pools}, local), index(first), index(start), index(end), 8, 4, true);
    for (std::int64_t i = 0; i < 16; ++i)
      EXPECT_EQ(tokens_of(rank, i), tokens_of(whole, positions[static_cast<std::size_t>(i)]));
  }
}

TEST(SelectTokens, T43_every_row_picks_min_of_budget_and_visible_pools) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal;
  for (const std::int64_t kpool : {4, 16}) {
    const std::int64_t tokens = 97, pools = tokens / kpool, topk = 3 * kpool;
    Array<double> scores({tokens, pools});
    for (double& value : scores.data) value = normal(random);
    Ids first;
    for (std::int64_t p = 0; p < pools; ++p) first.push_back(kpool * p);
    const Visibility visible = causal_visibility(index({0, tokens}), index({0, tokens}));
    const Selection rows = select_tokens(scores, index(first), visible.start, visible.end, topk, kpool, true);
    EXPECT_EQ(rows.ids.dim(1), topk + kpool - 1);
    std::int64_t really_select = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t candidates = (t + 1) / kpool, picked = std::min<std::int64_t>(3, candidates);
      EXPECT_EQ(static_cast<std::int64_t>(tokens_of(rows, t).size()), picked * kpool + (t + 1) % kpool);
      EXPECT_EQ(rows.margin[static_cast<std::size_t>(t)] == std::numeric_limits<double>::infinity(), candidates <= 3);
      really_select += candidates > 3 ? 1 : 0;
    }
    EXPECT_GT(really_select, 0) << "a case without rejected pools tests nothing";
  }
}

TEST(SelectTokens, T44_plateau_goes_to_the_lowest_index_in_every_run) {
  const std::vector<double> scores = {0, 0, 0.5, 0, 0, 0, 0, 0};
  const int jobs_before = jobs();
  for (int run = 0; run < 25; ++run) {
    set_jobs(1 + run % 3);
    const Selection row = at_end(scores, 8, 4, 1, false);
    ASSERT_EQ(row.ids.data, (Ids{2, 0, 1, 3}));
    ASSERT_EQ(row.margin[0], 0.0);
    ASSERT_EQ(row.tied[0], (Ids{0, 1, 3, 4, 5, 6, 7}));
  }
  set_jobs(jobs_before);
}

TEST(SelectTokens, T44_negative_zero_ties_with_zero) {
  // A negative head weight times relu 0.
  const Array<double> q = array<double>({1, 1, 1}, {1}), keys = array<double>({3, 1}, {-1, -1, -1});
  Array<double> scores = index_scores(q, keys, array<double>({1, 1}, {-1}), true, std::nullopt);
  scores[0] = -0.0;
  scores[1] = 0.0;
  const Selection row = select_tokens(scores, index({0, 1, 2}), index({0}), index({3}), 1, 1, false);
  EXPECT_EQ(row.ids.data, (Ids{0}));
  EXPECT_EQ(row.tied[0], (Ids{0, 1, 2}));
  // By bit pattern -0 would sort below +0 and pool 1 would win.
  Ids by_bits = {0, 1, 2};
  std::stable_sort(by_bits.begin(), by_bits.end(),
                   [&](std::int64_t a, std::int64_t b) { return std::signbit(scores[a]) < std::signbit(scores[b]); });
  EXPECT_EQ(by_bits.front(), 1);
}

TEST(SelectTokens, T48_a_second_forward_does_not_see_the_first_ones_picks) {
  const Selection first = at_end({3, 1, 2}, 12, 4, 4), second = at_end({1, 2, 3}, 12, 4, 4);
  EXPECT_EQ(first.pools.data, (Ids{0}));
  EXPECT_EQ(second.pools.data, (Ids{2}));
  EXPECT_EQ(at_end({1, 2, 3}, 12, 4, 4).ids.data, second.ids.data);
}

TEST(SelectTokens, T49_rows_of_queries_and_keys_have_offsets_of_their_own) {
  const Visibility visible = causal_visibility(index({0, 2, 4}), index({0, 3, 7}));
  EXPECT_EQ(visible.start.data, (Ids{0, 0, 3, 3}));
  EXPECT_EQ(visible.end.data, (Ids{2, 3, 6, 7}));
  // One common offset, that of the queries, gives the second request ks = 2.
  EXPECT_EQ(causal_visibility(index({0, 2, 4}), index({0, 2, 4})).start.data, (Ids{0, 0, 2, 2}));
}

TEST(SelectTokens, T49b_query_14_gets_two_pools_and_its_tail) {
  const Selection row = at_end({0.1, 0.9, 0.5}, 15, 8, 4);
  EXPECT_EQ(row.ids.data, (Ids{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_EQ(row.pools.data, (Ids{1, 2}));
  EXPECT_DOUBLE_EQ(row.margin[0], 0.4);
}

TEST(SelectTokens, a_query_that_ends_its_pool_has_no_tail_and_may_lose_itself) {
  const Selection row = at_end({2, 3, 1}, 12, 8, 4);
  EXPECT_EQ(row.ids.data, (Ids{4, 5, 6, 7, 0, 1, 2, 3, -1, -1, -1}));
  EXPECT_EQ(tokens_of(row, 0).count(11), 0U);
}

TEST(SelectTokens, every_scalar_chooses_the_same) {
  const std::vector<double> scores = {0.25, -1.5, 2.0, 0.25, 0.125};
  const Index first = index({0, 2, 4, 6, 8}), start = index({0}), end = index({10});
  const Ids expected = at_end(scores, 10, 4, 2).ids.data;
  EXPECT_EQ(select_tokens(array<Real>({1, 5}, scores), first, start, end, 4, 2, true).ids.data, expected);
  EXPECT_EQ(select_tokens(array<Ball>({1, 5}, scores), first, start, end, 4, 2, true).ids.data, expected);
  EXPECT_EQ(select_tokens(array<Bound>({1, 5}, scores), first, start, end, 4, 2, true).ids.data, expected);
}

TEST(SelectTokens, scores_that_are_wide_balls_are_undecided) {
  Array<Ball> scores = array<Ball>({1, 2}, {1, 1.5});
  mag_set_d(arb_radref(scores[0].data()), 1.0);
  EXPECT_THROW(select_tokens(scores, index({0, 1}), index({0}), index({2}), 1, 1, false), Undecided);
}

TEST(SelectTokens, a_near_tie_of_operands_is_decided_at_a_higher_precision) {
  const auto score = [](std::int64_t, std::int64_t p) {
    return Ball(1.0) + Ball(static_cast<double>(p)) * pow(Ball(10.0), Ball(-60.0));
  };
  const Selection row = select_tokens(index({0, 1, 2}), index({0}), index({3}), 1, 1, false, score, true);
  EXPECT_EQ(row.ids.data, (Ids{2}));
  EXPECT_TRUE(row.tied[0].empty());
}

TEST(SelectTokens, wrong_inputs_are_input_errors) {
  EXPECT_THROW(at_end({1, std::numeric_limits<double>::quiet_NaN()}, 8, 4, 4), InputError);
  EXPECT_THROW(at_end({1, 2}, 8, 6, 4), InputError) << "topk is no multiple of kpool";
  EXPECT_THROW(at_end({1, 2}, -1, 4, 4), InputError) << "visible_end below visible_start";
  EXPECT_THROW(select_tokens(array<double>({1, 2}, {1, 2}), index({0}), index({0}), index({4}), 4, 4, true),
               InputError);
  EXPECT_THROW(causal_visibility(index({0, 4}), index({0, 3})), InputError) << "more queries than keys";
  EXPECT_THROW(causal_visibility(index({0, 4, 3}), index({0, 4, 8})), InputError);
}

}  // namespace
}  // namespace assay::reference
