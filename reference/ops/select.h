// Which tokens a query of a sparse layer attends to. Sources: shared/spec/model.md 7.2; megatron.md 3.5.
#pragma once

#include <functional>
#include <vector>

#include "reference/array.h"
#include "reference/ball.h"

namespace assay::reference {

/// The tokens [start, end) that each query may see.
struct Visibility {
  Index start;  ///< [T]
  Index end;    ///< [T]
};

/// Causal visibility of packed documents: the queries of document d are its last tokens, query i of n sees
/// [cu_keys[d], cu_keys[d + 1] - n + i + 1). Queries before cu_queries[0] (left padding) see nothing. Throws InputError
/// for boundaries that decrease, differ in number, or give a document more queries than keys.
Visibility causal_visibility(const Index& cu_queries, const Index& cu_keys);

/// A pool is a candidate if all its tokens are visible.
inline bool pool_visible(std::int64_t first_token, std::int64_t kpool, std::int64_t start, std::int64_t end) {
  return start <= first_token && first_token + kpool <= end;
}

struct Selection {
  /// [T, W]: the tokens of the chosen pools by descending score, -1 up to topk; with a tail then the (end - start) mod
  /// kpool last visible tokens, -1 up to kpool - 1. W = topk + kpool - 1, or topk without a tail.
  Index ids;
  /// [T, min(topk / kpool, P)]: pool indices by descending score (equal scores: lowest index first), then -1.
  Index pools;
  /// Lowest chosen minus highest rejected candidate score; infinity if none was rejected, 0 for a tie.
  std::vector<double> margin;
  /// Pools that are equal at the threshold of a row, chosen and rejected together; empty without a tie.
  std::vector<std::vector<std::int64_t>> tied;
};

/// Pools are first_token [P] .. first_token + kpool - 1; visible_start and visible_end [T]. `score(t, p)` gives the
/// ball of a visible pool at context().bits; exact_operands as in top_k. Throws InputError for a topk that is no
/// multiple of kpool, visible_end < visible_start, and a score that is NaN; Undecided as top_k does.
Selection select_tokens(const Index& first_token, const Index& visible_start, const Index& visible_end,
                        std::int64_t topk, std::int64_t kpool, bool tail,
                        const std::function<Ball(std::int64_t t, std::int64_t p)>& score, bool exact_operands);

/// The same for given scores [T, P]: points for double, Real and the values of Bound, balls for Ball.
template <class T>
Selection select_tokens(const Array<T>& scores, const Index& first_token, const Index& visible_start,
                        const Index& visible_end, std::int64_t topk, std::int64_t kpool, bool tail);

}  // namespace assay::reference
