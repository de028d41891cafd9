#include "reference/ops/layout.h"

#include <gtest/gtest.h>

namespace assay::reference {
namespace {

using Ids = std::vector<std::int64_t>;

Index list(Ids values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return Index({n}, std::move(values));
}

/// Rows of 1, 2, ... with these lengths, and their masks.
Packed packed(const Ids& lengths, std::int64_t tp, std::int64_t cp, bool fp8) {
  const auto rows = static_cast<std::int64_t>(lengths.size());
  Index ids({rows, 128}), mask({rows, 128});
  for (std::int64_t d = 0; d < rows; ++d)
    for (std::int64_t i = 0; i < 128; ++i) {
      ids.at(d, i) = 1000 * (d + 1) + i;
      mask.at(d, i) = i < lengths[static_cast<std::size_t>(d)] ? 1 : 0;
    }
  return pack_sequences(ids, mask, tp, cp, fp8);
}

TEST(PackSequences, lengths_are_padded_for_the_layout) {
  // Examples of megatron.md 11.
  EXPECT_EQ(packed({5, 17, 33}, 1, 1, true).padded_lengths.data, (Ids{16, 32, 80}));
  EXPECT_EQ(packed({5, 17, 33}, 4, 2, true).padded_lengths.data, (Ids{16, 32, 2000}));
  EXPECT_EQ(packed({5, 17, 33}, 4, 2, false).cu_seqlens.data, (Ids{0, 16, 48, 96}));
  EXPECT_EQ(packed({100}, 3, 1, true).padded_lengths.data, (Ids{384}));
  EXPECT_EQ(packed({5, 17, 33}, 1, 1, false).padded_lengths.data, (Ids{5, 17, 33}));
  EXPECT_EQ(packed({0, 3}, 2, 1, false).cu_seqlens.data, (Ids{0, 0, 4}));
}

TEST(PackSequences, holes_in_the_mask_are_closed) {
  const Packed result = pack_sequences(Index({1, 5}, {1, 2, 3, 4, 5}), Index({1, 5}, {0, 1, 0, 1, 1}), 4, 1, false);
  EXPECT_EQ(result.ids.data, (Ids{2, 4, 5, 0}));
  EXPECT_THROW(packed({5}, 0, 1, false), InputError);
}

TEST(Zigzag, a_rank_holds_one_half_chunk_from_each_end_of_every_document) {
  const Index documents = list({0, 8, 8, 12});
  EXPECT_EQ(zigzag_tokens(documents, 2, 0).data, (Ids{0, 1, 6, 7, 8, 11}));
  EXPECT_EQ(zigzag_tokens(documents, 2, 1).data, (Ids{2, 3, 4, 5, 9, 10}));
  EXPECT_EQ(contiguous_tokens(12, 2, 1).data, (Ids{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(zigzag_tokens(list({0, 8}), 4, 3).data, (Ids{3, 4}));
}

TEST(Zigzag, undoing_gives_natural_order) {
  const Index documents = list({0, 12, 18, 36});
  const Index gathered = gathered_zigzag(documents, 3), undo = undo_zigzag(documents, 3);
  for (std::int64_t t = 0; t < 36; ++t) EXPECT_EQ(gathered[undo[t]], t);
  EXPECT_EQ(undo_zigzag(list({0, 8}), 4).data, (Ids{0, 2, 4, 6, 7, 5, 3, 1}));  // 0, 2, .. 2cp-2, 2cp-1, .. 1
}

TEST(Zigzag, lengths_and_ranks_are_checked) {
  EXPECT_THROW(zigzag_tokens(list({0, 6}), 2, 0), InputError);
  EXPECT_THROW(zigzag_tokens(list({0, 8}), 2, 2), InputError);
  EXPECT_THROW(zigzag_tokens(list({4, 8}), 2, 0), InputError);
  EXPECT_THROW(contiguous_tokens(7, 2, 0), InputError);
  EXPECT_THROW(exchange(20, 1, 3, 0, true), InputError);
}

TEST(Exchange, every_layout_gets_its_tokens_from_the_other) {
  for (const std::int64_t tp : {1, 2, 3, 4})
    for (const std::int64_t cp : {1, 2, 3}) {
      const std::int64_t tokens = 24 * cp, ranks = tp * cp, local = tokens / ranks;
      const Index gathered = gathered_zigzag(list({0, tokens}), cp);
      for (const bool to_contiguous : {true, false}) {
        std::vector<Exchange> all;
        for (std::int64_t rank = 0; rank < ranks; ++rank) all.push_back(exchange(tokens, tp, cp, rank, to_contiguous));
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const Exchange& own = all[static_cast<std::size_t>(rank)];
          for (std::int64_t i = 0; i < local; ++i) {
            const std::int64_t place = rank * local + i;
            EXPECT_EQ(own.tokens[i], to_contiguous ? place : gathered[place]);
          }
          for (std::int64_t other = 0; other < ranks; ++other)
            EXPECT_EQ(own.input_segment_counts[other],
                      all[static_cast<std::size_t>(other)].output_segment_counts[rank]);
        }
      }
    }
}

TEST(Exchange, segments_are_sent_by_destination) {
  // Context rank 2 of 3 holds the contiguous half-chunks 4 and 5, which belong to zigzag ranks 1 and 0.
  const Exchange result = exchange(24, 1, 3, 2, false);
  EXPECT_EQ(result.input_segment_counts.data, (Ids{1, 1, 0}));
  EXPECT_EQ(result.send_slots.data, (Ids{1, 0}));
  EXPECT_EQ(exchange(24, 1, 3, 2, true).receive_permutation.data, (Ids{1, 0}));
}

TEST(Route, tokens_are_sent_by_destination) {
  const Index documents = list({0, 8, 8, 12});
  EXPECT_EQ(zigzag_route(documents, 2, 0).split_sizes.data, (Ids{2, 4}));
  EXPECT_EQ(zigzag_route(documents, 2, 1).index.data, (Ids{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(contiguous_route(documents, 2, 1).index.data, (Ids{0, 1, 2, 5, 3, 4}));
  EXPECT_EQ(contiguous_route(documents, 2, 1).split_sizes.data, (Ids{4, 2}));
}

TEST(Headwise, every_rank_gets_its_part_of_every_section) {
  EXPECT_EQ(head_permutation({4, 2}, 2).data, (Ids{0, 1, 4, 2, 3, 5}));
  const Index values = after_headwise_exchange(4, {4, 2}, 2, 1);
  EXPECT_EQ(values.shape, (Shape{4, 1, 3}));
  EXPECT_EQ(values.data, (Ids{2, 3, 5, 1002, 1003, 1005, 2002, 2003, 2005, 3002, 3003, 3005}));
  EXPECT_THROW(head_permutation({4, 3}, 2), InputError);
}

TEST(CheckBoundaries, says_what_is_wrong) {
  try {
    check_boundaries(list({0, 5, 5}), 5, "cu_seqlens", Empty::kRefused);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "cu_seqlens[2]: 5 after 5; increasing from 0 to 5");
  }
  EXPECT_NO_THROW(check_boundaries(list({0, 5, 5}), 5, "cu_seqlens", Empty::kAllowed));
  EXPECT_THROW(check_boundaries(Index(), 0, "cu_seqlens", Empty::kAllowed), InputError);
}

}  // namespace
}  // namespace assay::reference
