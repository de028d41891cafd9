#include "cases/sum_tree.h"

#include <algorithm>
#include <bit>

namespace assay {

std::string SumTree::text() const {
  switch (kind) {
    case Kind::kAny:
      return "any";
    case Kind::kBlocks:
      return "blocks of " + std::to_string(block);
    case Kind::kPairwise:
      return "pairwise";
  }
  return {};
}

std::int64_t SumTree::depth(std::int64_t n) const {
  if (n <= 1) return n;
  switch (kind) {
    case Kind::kAny:
      return n;
    case Kind::kBlocks:
      return std::min(n, block) + (n + block - 1) / block;
    case Kind::kPairwise:
      return std::bit_width(static_cast<std::uint64_t>(n - 1)) + 1;
  }
  return n;
}

}  // namespace assay
