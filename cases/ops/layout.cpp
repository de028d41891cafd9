#include "cases/ops/layout.h"

#include "cases/ops/spec.h"

namespace assay {

using namespace spec;  // NOLINT: the words of this file

const std::vector<OpSpec>& layout_ops() {
  static const std::vector<OpSpec> ops = {
      {.name = "pack_sequences",
       .summary = "padded batch rows as one packed sequence, each length padded for the layout",
       .attributes =
           {
               with_default("tp_size", kInteger, 1, "tensor-parallel ranks"),
               with_default("cp_size", kInteger, 1, "context-parallel ranks"),
               with_default("use_fp8_padding", kBool, false, "pad to the FP8 alignment as well"),
               with_default("rank", kInteger, 0, "context-parallel rank of rank_ids"),
           },
       .inputs =
           {
               index("input_ids", "B L", "token ids"),
               index("attention_mask", "B L", "not 0 for real tokens, which may have holes between them"),
           },
       .outputs =
           {
               index("cu_seqlens", "B+1", "boundaries of the padded documents"),
               index("padded_lengths", "B", "padded length of each document"),
               index("max_seqlen", "1", "largest padded length"),
               index("packed_ids", "N", "token ids of the packed stream, 0 where padded"),
               index("rank_ids", "Nr", "token ids that the rank holds: half-chunks r and 2cp-1-r of each document"),
           },
       .source = "megatron.md 11"},
      {.name = "cp_dense_order",
       .summary =
           "which tokens of one sequence a rank holds in the zigzag and the contiguous layout, and how to change",
       .attributes =
           {
               required("tokens", kInteger, "tokens of the sequence, a multiple of cp_size * lcm(2, tp_size)"),
               required("cp_size", kInteger, "context-parallel ranks"),
               with_default("tp_size", kInteger, 1, "tensor-parallel ranks that share a context rank's tokens"),
               required("rank", kInteger, "this rank: cp_rank * tp_size + tp_rank"),
           },
       .inputs = {},
       .outputs =
           {
               index("zigzag", "L", "token of each local place, load-balanced"),
               index("contiguous", "L", "the same for contiguous sequence parts"),
               index("gathered_zigzag", "tokens", "zigzag of all ranks, one after the other"),
               index("undone", "tokens", "gathered_zigzag brought to natural order"),
               index("redone", "tokens", "undone brought back to gathered_zigzag"),
               index("zigzag_to_contiguous", "L", "tokens after the exchange of segments (the largest uncut pieces)"),
               index("zigzag_to_contiguous_input_segment_counts", "R", "segments sent to each rank"),
               index("zigzag_to_contiguous_output_segment_counts", "R", "segments received from each rank"),
               index("zigzag_to_contiguous_send_slots", "P",
                     "local segment at each place of the send buffer: by destination, then local order"),
               index("zigzag_to_contiguous_receive_permutation", "P",
                     "place in the receive buffer of each local segment"),
               index("contiguous_to_zigzag", "L", "tokens after the opposite exchange"),
               index("contiguous_to_zigzag_input_segment_counts", "R", "segments sent to each rank"),
               index("contiguous_to_zigzag_output_segment_counts", "R", "segments received from each rank"),
               index("contiguous_to_zigzag_send_slots", "P", "local segment at each place of the send buffer"),
               index("contiguous_to_zigzag_receive_permutation", "P",
                     "place in the receive buffer of each local segment"),
           },
       .source = "megatron.md 2.8"},
      {.name = "cp_packed_order",
       .summary =
           "which tokens of a packed stream a rank holds in the zigzag and the contiguous layout, and how to change",
       .attributes =
           {
               required("cp_size", kInteger, "context-parallel ranks"),
               required("rank", kInteger, "this rank"),
           },
       .inputs =
           {
               index("cu_seqlens", "S", "document boundaries in tokens; 2 cp_size divides each length, 0 is a length"),
           },
       .outputs =
           {
               index("zigzag", "L", "token of each local place: half-chunks r and 2cp-1-r of each document"),
               index("contiguous", "L", "the same for contiguous parts of the whole stream"),
               index("headwise_a2a_index", "N",
                     "place of each token in the zigzag parts of all ranks, one after the other"),
               index("headwise_a2a_inverse", "N", "token of each of those places"),
               index("route_zigzag_index", "L",
                     "zigzag to contiguous: local place of each token of the send buffer, by destination"),
               index("route_zigzag_split_sizes", "cp_size", "zigzag to contiguous: tokens sent to each rank"),
               index("route_contiguous_index", "L",
                     "contiguous to zigzag: local place of each token of the send buffer"),
               index("route_contiguous_split_sizes", "cp_size", "contiguous to zigzag: tokens sent to each rank"),
           },
       .source = "megatron.md 2.8"},
      {.name = "cp_headwise_order",
       .summary = "orders of the all-to-all from sequence to heads",
       .attributes =
           {
               required("tokens", kInteger, "tokens of the sequence, a multiple of 2 cp_size"),
               required("sections", kIntegers, "channels of each section (q, k, v, ...), multiples of cp_size"),
               required("cp_size", kInteger, "context-parallel ranks"),
               required("rank", kInteger, "this rank"),
           },
       .inputs = {},
       .outputs =
           {
               index("head_permutation", "Ch",
                     "channel order before the exchange: rank by rank its part of every section"),
               index("after_a2a", "tokens 1 Cr",
                     "token and channel of each value after the exchange, as 1000 * token + channel; natural token "
                     "order"),
           },
       .source = "megatron.md 2.8"},
  };
  return ops;
}

}  // namespace assay
