// Packed sequences: where the documents of a token stream begin and end. Source: shared/spec/megatron.md 2.7.
#pragma once

#include <vector>

#include "reference/array.h"

namespace assay::reference {

/// Tokens [begin, end) of the stream; begin == end is a legal, empty document.
struct Document {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t length() const { return end - begin; }
};

/// The documents of a stream of `tokens` tokens. cu_seqlens [documents + 1] starts with 0, never decreases and ends
/// with `tokens`; an empty Index means one document. Throws InputError naming cu_seqlens otherwise.
std::vector<Document> documents_of(const Index& cu_seqlens, std::int64_t tokens);

}  // namespace assay::reference
