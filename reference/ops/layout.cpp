#include "reference/ops/layout.h"

#include <algorithm>
#include <numeric>

namespace assay::reference {
namespace {

void check_size(const std::string& name, std::int64_t size) {
  if (size < 1) throw InputError(name, std::to_string(size), "1 or more");
}

void check_rank(std::int64_t rank, std::int64_t ranks) {
  if (rank < 0 || rank >= ranks) throw InputError("rank", std::to_string(rank), "0 to " + std::to_string(ranks - 1));
}

void check_divides(const std::string& name, std::int64_t value, std::int64_t divisor) {
  if (value % divisor != 0) throw InputError(name, std::to_string(value), "a multiple of " + std::to_string(divisor));
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Index list(std::vector<std::int64_t> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return Index({count}, std::move(values));
}

void check_documents(const Index& cu_seqlens, std::int64_t cp_size) {
  check_size("cp_size", cp_size);
  if (cu_seqlens.size() < 1) throw InputError("cu_seqlens", "no boundaries", "at least a 0");
  check_boundaries(cu_seqlens, cu_seqlens[cu_seqlens.size() - 1], "cu_seqlens", Empty::kAllowed);
  for (std::int64_t d = 0; d + 1 < cu_seqlens.size(); ++d)
    check_divides("length of document " + std::to_string(d), cu_seqlens[d + 1] - cu_seqlens[d], 2 * cp_size);
}

Index one_document(std::int64_t tokens) { return list({0, tokens}); }

/// The places of `owners` in the order of their owner, stable; and how many each owner has.
std::pair<Index, Index> by_owner(const std::vector<std::int64_t>& owners, std::int64_t ranks) {
  std::vector<std::int64_t> places(owners.size()), counts(static_cast<std::size_t>(ranks));
  std::iota(places.begin(), places.end(), 0);
  const auto owner = [&](std::int64_t place) { return owners[static_cast<std::size_t>(place)]; };
  std::stable_sort(places.begin(), places.end(), [&](auto a, auto b) { return owner(a) < owner(b); });
  for (const std::int64_t rank : owners) ++counts[static_cast<std::size_t>(rank)];
  return {list(std::move(places)), list(std::move(counts))};
}

/// Rank that holds each token, from the gathered order of ranks with equally many tokens.
std::vector<std::int64_t> owners_of(const Index& gathered, std::int64_t ranks) {
  std::vector<std::int64_t> owner(gathered.data.size());
  const std::int64_t local = std::max<std::int64_t>(1, gathered.size() / ranks);
  for (std::int64_t place = 0; place < gathered.size(); ++place)
    owner[static_cast<std::size_t>(gathered[place])] = place / local;
  return owner;
}

Route route(const Index& local, const std::vector<std::int64_t>& owner_of_token, std::int64_t ranks) {
  std::vector<std::int64_t> owners;
  for (const std::int64_t token : local.data) owners.push_back(owner_of_token[static_cast<std::size_t>(token)]);
  auto [index, sizes] = by_owner(owners, ranks);
  return {std::move(index), std::move(sizes)};
}

std::vector<std::int64_t> identity(std::int64_t count) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

Index slice(const Index& values, std::int64_t first, std::int64_t count) {
  return list({values.data.begin() + first, values.data.begin() + first + count});
}

}  // namespace

void check_boundaries(const Index& boundaries, std::int64_t total, const std::string& operand, Empty empty) {
  const std::string allowed =
      std::string(empty == Empty::kAllowed ? "nondecreasing" : "increasing") + " from 0 to " + std::to_string(total);
  const std::int64_t last = boundaries.size() - 1;
  if (last < 0) throw InputError(operand, "no boundaries", allowed);
  const auto fail = [&](std::int64_t i) {
    const std::string before = i > 0 ? " after " + std::to_string(boundaries[i - 1]) : "";
    throw InputError(operand + "[" + std::to_string(i) + "]", std::to_string(boundaries[i]) + before, allowed);
  };
  if (boundaries[0] != 0) fail(0);
  for (std::int64_t i = 1; i <= last; ++i)
    if (boundaries[i] < boundaries[i - 1] + (empty == Empty::kAllowed ? 0 : 1)) fail(i);
  if (boundaries[last] != total) fail(last);
}

Packed pack_sequences(const Index& input_ids, const Index& attention_mask, std::int64_t tp_size, std::int64_t cp_size,
                      bool fp8_padding) {
  check_size("tp_size", tp_size);
  check_size("cp_size", cp_size);
  const std::int64_t documents = input_ids.dim(0), width = input_ids.dim(1);
  check_size("pack_sequences: documents", documents);
  const std::int64_t base = cp_size > 1 ? 2 * tp_size * cp_size : tp_size;
  const std::int64_t alignment = fp8_padding ? std::lcm(std::int64_t{16}, base) : base;
  std::vector<std::int64_t> boundaries{0}, lengths, ids;
  for (std::int64_t d = 0; d < documents; ++d) {
    for (std::int64_t i = 0; i < width; ++i)
      if (attention_mask.at(d, i) != 0) ids.push_back(input_ids.at(d, i));
    auto end = boundaries.back() + round_up(static_cast<std::int64_t>(ids.size()) - boundaries.back(), alignment);
    if (fp8_padding && d + 1 == documents) end = round_up(end, 128 * base);
    ids.resize(static_cast<std::size_t>(end), 0);
    lengths.push_back(end - boundaries.back());
    boundaries.push_back(end);
  }
  return {list(std::move(boundaries)), list(std::move(lengths)), list(std::move(ids))};
}

Index zigzag_tokens(const Index& cu_seqlens, std::int64_t cp_size, std::int64_t rank) {
  check_documents(cu_seqlens, cp_size);
  check_rank(rank, cp_size);
  std::vector<std::int64_t> tokens;
  for (std::int64_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    const std::int64_t half = (cu_seqlens[d + 1] - cu_seqlens[d]) / (2 * cp_size);
    for (const std::int64_t chunk : {rank, 2 * cp_size - 1 - rank})
      for (std::int64_t i = 0; i < half; ++i) tokens.push_back(cu_seqlens[d] + chunk * half + i);
  }
  return list(std::move(tokens));
}

Index contiguous_tokens(std::int64_t tokens, std::int64_t cp_size, std::int64_t rank) {
  check_size("cp_size", cp_size);
  check_rank(rank, cp_size);
  check_divides("tokens", tokens, cp_size);
  return slice(list(identity(tokens)), rank * (tokens / cp_size), tokens / cp_size);
}

Index gathered_zigzag(const Index& cu_seqlens, std::int64_t cp_size) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t rank = 0; rank < cp_size; ++rank) {
    const Index local = zigzag_tokens(cu_seqlens, cp_size, rank);
    tokens.insert(tokens.end(), local.data.begin(), local.data.end());
  }
  return list(std::move(tokens));
}

Index undo_zigzag(const Index& cu_seqlens, std::int64_t cp_size) {
  check_documents(cu_seqlens, cp_size);
  const std::int64_t total = cu_seqlens[cu_seqlens.size() - 1], local = total / cp_size;
  std::vector<std::int64_t> places;
  for (std::int64_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    const std::int64_t half = (cu_seqlens[d + 1] - cu_seqlens[d]) / (2 * cp_size);
    for (std::int64_t chunk = 0; chunk < 2 * cp_size; ++chunk) {
      const std::int64_t rank = std::min(chunk, 2 * cp_size - 1 - chunk);
      const std::int64_t second = chunk < cp_size ? 0 : half;
      for (std::int64_t i = 0; i < half; ++i) places.push_back(rank * local + cu_seqlens[d] / cp_size + second + i);
    }
  }
  return list(std::move(places));
}

Exchange exchange(std::int64_t tokens, std::int64_t tp_size, std::int64_t cp_size, std::int64_t rank,
                  bool to_contiguous) {
  check_size("tp_size", tp_size);
  check_size("cp_size", cp_size);
  const std::int64_t ranks = tp_size * cp_size, segments = cp_size * std::lcm(std::int64_t{2}, tp_size);
  check_rank(rank, ranks);
  check_divides("tokens", tokens, segments);
  // In units of segments a half-chunk of the zigzag layout has segments / (2 cp) of them.
  const Index zigzag = gathered_zigzag(one_document(segments), cp_size), natural = list(identity(segments));
  const Index& source = to_contiguous ? zigzag : natural;
  const Index& target = to_contiguous ? natural : zigzag;
  const std::int64_t slots = segments / ranks, size = tokens / segments;
  const auto send = [&](std::int64_t from) {
    return route(slice(source, from * slots, slots), owners_of(target, ranks), ranks);
  };
  const Route own = send(rank);
  std::vector<std::int64_t> received, counts;
  for (std::int64_t from = 0; from < ranks; ++from) {
    const Route other = send(from);
    const auto& sizes = other.split_sizes.data;
    const std::int64_t before = std::accumulate(sizes.begin(), sizes.begin() + rank, std::int64_t{0});
    counts.push_back(other.split_sizes[rank]);
    for (std::int64_t i = 0; i < counts.back(); ++i) received.push_back(source[from * slots + other.index[before + i]]);
  }
  std::vector<std::int64_t> permutation, result;
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const auto found = std::find(received.begin(), received.end(), target[rank * slots + slot]);
    ASSAY_CHECK(found != received.end());
    permutation.push_back(found - received.begin());
    for (std::int64_t i = 0; i < size; ++i) result.push_back(*found * size + i);
  }
  return {list(std::move(result)), own.split_sizes, list(std::move(counts)), own.index, list(std::move(permutation))};
}

Route zigzag_route(const Index& cu_seqlens, std::int64_t cp_size, std::int64_t rank) {
  const Index local = zigzag_tokens(cu_seqlens, cp_size, rank);
  return route(local, owners_of(list(identity(local.size() * cp_size)), cp_size), cp_size);
}

Route contiguous_route(const Index& cu_seqlens, std::int64_t cp_size, std::int64_t rank) {
  const Index gathered = gathered_zigzag(cu_seqlens, cp_size);
  return route(contiguous_tokens(gathered.size(), cp_size, rank), owners_of(gathered, cp_size), cp_size);
}

Index head_permutation(const std::vector<std::int64_t>& sections, std::int64_t cp_size) {
  check_size("cp_size", cp_size);
  std::vector<std::int64_t> channels;
  for (std::int64_t rank = 0; rank < cp_size; ++rank) {
    std::int64_t first = 0;
    for (const std::int64_t section : sections) {
      check_size("section", section);
      check_divides("section", section, cp_size);
      const std::int64_t part = section / cp_size;
      for (std::int64_t i = 0; i < part; ++i) channels.push_back(first + rank * part + i);
      first += section;
    }
  }
  return list(std::move(channels));
}

Index after_headwise_exchange(std::int64_t tokens, const std::vector<std::int64_t>& sections, std::int64_t cp_size,
                              std::int64_t rank) {
  check_rank(rank, cp_size);
  const Index channels = head_permutation(sections, cp_size);
  const std::int64_t part = channels.size() / cp_size;
  const Index gathered = gathered_zigzag(one_document(tokens), cp_size),
              undo = undo_zigzag(one_document(tokens), cp_size);
  Index values({tokens, 1, part});
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t i = 0; i < part; ++i) values[t * part + i] = 1000 * gathered[undo[t]] + channels[rank * part + i];
  return values;
}

namespace {

Index rearranged(const Index& values, const Index& index) {
  Index result(index.shape);
  for (std::int64_t i = 0; i < index.size(); ++i) result[i] = values[index[i]];
  return result;
}

template <class T>
Results<T> dense_order(const Call<T>& call) {
  const std::int64_t tokens = call.integer("tokens"), tp_size = call.integer("tp_size");
  const std::int64_t cp_size = call.integer("cp_size"), rank = call.integer("rank"), ranks = tp_size * cp_size;
  Results<T> results;
  for (const bool to_contiguous : {true, false}) {
    Exchange result = exchange(tokens, tp_size, cp_size, rank, to_contiguous);
    const std::string name = to_contiguous ? "zigzag_to_contiguous" : "contiguous_to_zigzag";
    results[name] = std::move(result.tokens);
    results[name + "_input_segment_counts"] = std::move(result.input_segment_counts);
    results[name + "_output_segment_counts"] = std::move(result.output_segment_counts);
    results[name + "_send_slots"] = std::move(result.send_slots);
    results[name + "_receive_permutation"] = std::move(result.receive_permutation);
  }
  const Index gathered = gathered_zigzag(one_document(tokens), cp_size);
  const Index undone = rearranged(gathered, undo_zigzag(one_document(tokens), cp_size));
  results["zigzag"] = slice(gathered, rank * (tokens / ranks), tokens / ranks);
  results["contiguous"] = contiguous_tokens(tokens, ranks, rank);
  results["redone"] = rearranged(undone, gathered);
  results["undone"] = undone;
  results["gathered_zigzag"] = gathered;
  return results;
}

template <class T>
Results<T> packed_order(const Call<T>& call) {
  const Index cu_seqlens = call.index("cu_seqlens");
  const std::int64_t cp_size = call.integer("cp_size"), rank = call.integer("rank");
  Route zigzag = zigzag_route(cu_seqlens, cp_size, rank), contiguous = contiguous_route(cu_seqlens, cp_size, rank);
  return {{"zigzag", zigzag_tokens(cu_seqlens, cp_size, rank)},
          {"contiguous", contiguous_tokens(cu_seqlens[cu_seqlens.size() - 1], cp_size, rank)},
          {"headwise_a2a_index", undo_zigzag(cu_seqlens, cp_size)},
          {"headwise_a2a_inverse", gathered_zigzag(cu_seqlens, cp_size)},
          {"route_zigzag_index", std::move(zigzag.index)},
          {"route_zigzag_split_sizes", std::move(zigzag.split_sizes)},
          {"route_contiguous_index", std::move(contiguous.index)},
          {"route_contiguous_split_sizes", std::move(contiguous.split_sizes)}};
}

template <class T>
Results<T> packed_batch(const Call<T>& call) {
  const std::int64_t cp_size = call.integer("cp_size"), rank = call.integer("rank");
  Packed packed = pack_sequences(call.index("input_ids"), call.index("attention_mask"), call.integer("tp_size"),
                                 cp_size, call.flag("use_fp8_padding"));
  check_rank(rank, cp_size);
  Index local = cp_size > 1 ? rearranged(packed.ids, zigzag_tokens(packed.cu_seqlens, cp_size, rank)) : packed.ids;
  const auto& lengths = packed.padded_lengths.data;
  const Index longest({1}, {*std::max_element(lengths.begin(), lengths.end())});
  return {{"cu_seqlens", std::move(packed.cu_seqlens)},
          {"padded_lengths", std::move(packed.padded_lengths)},
          {"max_seqlen", longest},
          {"packed_ids", std::move(packed.ids)},
          {"rank_ids", std::move(local)}};
}

}  // namespace

template <class T>
void add_layout_ops(OpTable<T>& table) {
  table["pack_sequences"] = packed_batch<T>;
  table["cp_dense_order"] = dense_order<T>;
  table["cp_packed_order"] = packed_order<T>;
  table["cp_headwise_order"] = [](const Call<T>& call) {
    const std::vector<std::int64_t> sections = call.integers("sections");
    const std::int64_t cp_size = call.integer("cp_size");
    return Results<T>{
        {"head_permutation", head_permutation(sections, cp_size)},
        {"after_a2a", after_headwise_exchange(call.integer("tokens"), sections, cp_size, call.integer("rank"))}};
  };
}

#define ASSAY_INSTANTIATE(T) template void add_layout_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
