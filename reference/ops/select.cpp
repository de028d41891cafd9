#include "reference/ops/select.h"

#include <string>

#include "reference/decide.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

std::string row_text(std::int64_t t) { return " of row " + std::to_string(t); }

void check_boundaries(const char* operand, const Index& boundaries) {
  for (std::int64_t i = 0; i < boundaries.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : boundaries[i - 1];
    if (boundaries[i] < least)
      throw InputError(operand, "entry " + std::to_string(i) + " is " + std::to_string(boundaries[i]),
                       "at least " + std::to_string(least));
  }
}

}  // namespace

Visibility causal_visibility(const Index& cu_queries, const Index& cu_keys) {
  check_boundaries("cu_queries", cu_queries);
  check_boundaries("cu_keys", cu_keys);
  if (cu_queries.size() == 0 || cu_queries.size() != cu_keys.size())
    throw InputError("cu_keys", std::to_string(cu_keys.size()) + " boundaries",
                     "as many as cu_queries, at least 1: " + std::to_string(cu_queries.size()));
  const std::int64_t rows = cu_queries.data.back();
  Visibility visible{Index({rows}), Index({rows})};
  for (std::int64_t d = 0; d + 1 < cu_queries.size(); ++d) {
    const std::int64_t queries = cu_queries[d + 1] - cu_queries[d];
    const std::int64_t prefix = cu_keys[d + 1] - cu_keys[d] - queries;
    if (prefix < 0)
      throw InputError("cu_queries", std::to_string(queries) + " queries in document " + std::to_string(d),
                       "at most its keys, " + std::to_string(cu_keys[d + 1] - cu_keys[d]));
    for (std::int64_t i = 0; i < queries; ++i) {
      visible.start[cu_queries[d] + i] = cu_keys[d];
      visible.end[cu_queries[d] + i] = cu_keys[d] + prefix + i + 1;
    }
  }
  return visible;
}

Selection select_tokens(const Index& first_token, const Index& visible_start, const Index& visible_end,
                        std::int64_t topk, std::int64_t kpool, bool tail,
                        const std::function<Ball(std::int64_t t, std::int64_t p)>& score, bool exact_operands) {
  if (kpool < 1) throw InputError("kpool", std::to_string(kpool), "at least 1");
  if (topk < 0 || topk % kpool != 0)
    throw InputError("topk", std::to_string(topk), "a multiple of kpool, " + std::to_string(kpool));
  const std::int64_t rows = visible_start.size(), pools = first_token.size();
  if (visible_end.size() != rows)
    throw InputError("visible_end", std::to_string(visible_end.size()) + " entries",
                     "as many as visible_start, " + std::to_string(rows));
  const std::int64_t budget = topk / kpool, pool_columns = std::min(budget, pools);
  const std::int64_t width = tail ? topk + kpool - 1 : topk;
  Selection result;
  result.ids = Index({rows, width});
  result.pools = Index({rows, pool_columns});
  result.ids.data.assign(result.ids.data.size(), -1);
  result.pools.data.assign(result.pools.data.size(), -1);
  result.margin.resize(static_cast<std::size_t>(rows));
  result.tied.resize(static_cast<std::size_t>(rows));
  parallel_for(rows, [&](std::int64_t t) {
    const std::int64_t start = visible_start[t], end = visible_end[t];
    if (end < start)
      throw InputError("visible_end", std::to_string(end) + row_text(t),
                       "at least visible_start, " + std::to_string(start));
    std::vector<std::int64_t> candidates;
    for (std::int64_t p = 0; p < pools; ++p)
      if (pool_visible(first_token[p], kpool, start, end)) candidates.push_back(p);
    const auto certified = [&](std::int64_t p) {
      Ball value = score(t, p);
      if (arf_is_nan(arb_midref(value.data())) && arb_is_exact(value.data()))
        throw InputError("scores", "NaN" + row_text(t) + ", pool " + std::to_string(p), "numbers");
      return value;
    };
    TopK best = top_k(candidates, budget, certified, exact_operands);
    std::int64_t* ids = result.ids.row(t, width);
    for (std::size_t i = 0; i < best.winners.size(); ++i) {
      const std::int64_t pool = best.winners[i];
      result.pools.row(t, pool_columns)[i] = pool;
      for (std::int64_t s = 0; s < kpool; ++s) *ids++ = first_token[pool] + s;
    }
    if (tail) {
      const std::int64_t count = (end - start) % kpool;
      std::int64_t* tail_ids = result.ids.row(t, width) + topk;
      for (std::int64_t s = 0; s < count; ++s) tail_ids[s] = end - count + s;
    }
    result.margin[static_cast<std::size_t>(t)] = best.margin;
    result.tied[static_cast<std::size_t>(t)] = std::move(best.tied);
  });
  return result;
}

template <class T>
Selection select_tokens(const Array<T>& scores, const Index& first_token, const Index& visible_start,
                        const Index& visible_end, std::int64_t topk, std::int64_t kpool, bool tail) {
  const std::int64_t pools = first_token.size();
  if (scores.size() != visible_start.size() * pools)
    throw InputError("scores", assay::to_string(scores.shape),
                     assay::to_string(Shape{visible_start.size(), pools}) + ", a row for each query");
  return select_tokens(
      first_token, visible_start, visible_end, topk, kpool, tail,
      [&](std::int64_t t, std::int64_t p) { return to_ball(scores[t * pools + p]); }, !std::is_same_v<T, Ball>);
}

#define ASSAY_INSTANTIATE(T)                                                                                \
  template Selection select_tokens(const Array<T>&, const Index&, const Index&, const Index&, std::int64_t, \
                                   std::int64_t, bool);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
