// The reduction tree of a sum, as a contract declares it.
#pragma once

#include <cstdint>
#include <string>

namespace assay {

/// The order in which a sum may be taken.
struct SumTree {
  enum class Kind {
    kAny,       ///< any order, any grouping
    kBlocks,    ///< any order within blocks of `block` consecutive terms, then over the blocks in any order
    kPairwise,  ///< a balanced binary tree
  };
  Kind kind = Kind::kAny;
  std::int64_t block = 0;

  /// "any", "blocks of 128", "pairwise".
  std::string text() const;
  /// The most additions that one of n terms can pass through.
  std::int64_t depth(std::int64_t n) const;
};

}  // namespace assay
