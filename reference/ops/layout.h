// Packing and context-parallel orders: integers only. Sources: shared/spec/megatron.md 2.8, 11.
//
// Zigzag: the sequence (or each document) is cut into 2*cp half-chunks; context rank r holds half-chunks r and
// 2*cp-1-r. Contiguous: rank r holds the r-th of cp equal stretches of the whole stream. Gathered: the tokens of all
// ranks one after the other. All functions throw InputError for sizes below 1, ranks out of range and lengths that the
// cuts do not divide.
#pragma once

#include <string>

#include "reference/call.h"

namespace assay::reference {

enum class Empty { kAllowed, kRefused };

/// Throws InputError naming `operand` unless the boundaries start at 0, end at `total` and never decrease (never stand
/// still either where empty parts are refused).
void check_boundaries(const Index& boundaries, std::int64_t total, const std::string& operand, Empty empty);

struct Packed {
  Index cu_seqlens;      ///< [B+1], boundaries of the padded documents
  Index padded_lengths;  ///< [B]
  Index ids;             ///< [N], the packed stream, padded with 0
};

/// Tokens with a non-zero mask of each row, in order, padded to a0 = 2*tp*cp (cp > 1) or tp; with `fp8_padding` to
/// lcm(16, a0), and the last document further until 128*a0 divides N. input_ids, attention_mask [B, L].
Packed pack_sequences(const Index& input_ids, const Index& attention_mask, std::int64_t tp_size, std::int64_t cp_size,
                      bool fp8_padding);

/// Token of each place of context rank `rank`, document after document. cu_seqlens [S] from 0, multiples of 2*cp.
Index zigzag_tokens(const Index& cu_seqlens, std::int64_t cp_size, std::int64_t rank);
/// The same for the contiguous layout of `tokens` tokens.
Index contiguous_tokens(std::int64_t tokens, std::int64_t cp_size, std::int64_t rank);
/// zigzag_tokens of all ranks, one after the other.
Index gathered_zigzag(const Index& cu_seqlens, std::int64_t cp_size);
/// Place of each token in the gathered zigzag order: gathered[undo[t]] == t.
Index undo_zigzag(const Index& cu_seqlens, std::int64_t cp_size);

/// One rank's part in an exchange of a dense sequence between the two layouts over tp*cp ranks (logical rank =
/// cp_rank * tp_size + tp_rank; under sequence parallelism it holds the tp_rank-th part of its context rank's tokens).
/// The sequence travels in segments, the largest pieces that no rank of either layout cuts.
struct Exchange {
  Index tokens;                 ///< after the exchange, each place's token
  Index input_segment_counts;   ///< [tp*cp], segments sent to each rank
  Index output_segment_counts;  ///< [tp*cp], segments received from each rank
  Index send_slots;             ///< local segment at each place of the send buffer (by destination, then local order)
  Index receive_permutation;    ///< place in the receive buffer of each local segment
};

Exchange exchange(std::int64_t tokens, std::int64_t tp_size, std::int64_t cp_size, std::int64_t rank,
                  bool to_contiguous);

/// One rank's sending side for a packed stream.
struct Route {
  Index index;        ///< local place of each token of the send buffer (by destination, then local order)
  Index split_sizes;  ///< [cp], tokens sent to each rank
};

Route zigzag_route(const Index& cu_seqlens, std::int64_t cp_size, std::int64_t rank);
Route contiguous_route(const Index& cu_seqlens, std::int64_t cp_size, std::int64_t rank);

/// Channels in the order that gives each context rank an equal part of every section.
Index head_permutation(const std::vector<std::int64_t>& sections, std::int64_t cp_size);
/// 1000 * token + channel of every value that context rank `rank` holds after the exchange from sequence to heads of a
/// zigzag sequence: [tokens, 1, channels / cp], tokens in natural order.
Index after_headwise_exchange(std::int64_t tokens, const std::vector<std::int64_t>& sections, std::int64_t cp_size,
                              std::int64_t rank);

template <class T>
void add_layout_ops(OpTable<T>& table);

}  // namespace assay::reference
