#include "reference/ops/documents.h"

#include <string>

namespace assay::reference {
namespace {

std::string entry(std::int64_t i, std::int64_t value) {
  return "entry " + std::to_string(i) + " is " + std::to_string(value);
}

}  // namespace

std::vector<Document> documents_of(const Index& cu_seqlens, std::int64_t tokens) {
  if (cu_seqlens.size() == 0) return {{0, tokens}};
  const std::int64_t last = cu_seqlens.size() - 1;
  if (cu_seqlens[0] != 0) throw InputError("cu_seqlens", entry(0, cu_seqlens[0]), "the first entry is 0");
  std::vector<Document> documents;
  for (std::int64_t i = 1; i <= last; ++i) {
    if (cu_seqlens[i] < cu_seqlens[i - 1])
      throw InputError("cu_seqlens", entry(i, cu_seqlens[i]) + " after " + std::to_string(cu_seqlens[i - 1]),
                       "entries never decrease");
    documents.push_back({cu_seqlens[i - 1], cu_seqlens[i]});
  }
  if (cu_seqlens[last] != tokens)
    throw InputError("cu_seqlens", entry(last, cu_seqlens[last]),
                     "the last entry is the number of tokens, " + std::to_string(tokens));
  return documents;
}

}  // namespace assay::reference
