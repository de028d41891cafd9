#include <algorithm>
#include <type_traits>

#include "reference/model/layers.h"
#include "reference/ops/attention.h"
#include "reference/ops/indexer.h"
#include "reference/ops/linear.h"
#include "reference/ops/norm.h"
#include "reference/ops/select.h"

namespace assay::reference {
namespace {

constexpr double kIndexerNormEps = 1e-6;  // fixed, not rms_norm_eps (model.md 7.2)

template <class T>
Array<T> rows_between(const Array<T>& x, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = x.dim(0) == 0 ? 0 : x.size() / x.dim(0);
  Shape shape = x.shape;
  shape[0] = end - begin;
  return Array<T>(shape, std::vector<T>(x.data.begin() + begin * width, x.data.begin() + end * width));
}

/// What the indexer compares, for the whole flattened batch.
template <class T>
struct IndexerOperands {
  Array<T> q;        ///< [tokens, heads, dim]
  Array<T> k;        ///< [tokens, dim]
  Array<T> gate;     ///< [tokens, dim]
  Array<T> weights;  ///< [tokens, heads], with heads^-1/2 and dim^-1/2 folded in
  Array<T> ape;      ///< [kpool, dim]
};

template <class T>
IndexerOperands<T> indexer_operands(const Weights& indexer, const Array<T>& h, const Array<T>& query_latent) {
  const ModelConfig& config = indexer.config();
  IndexerOperands<T> operands;
  operands.q = linear(query_latent, indexer.get<T>("wq_b.weight"), Array<T>())
                   .reshaped({h.dim(0), config.index_n_heads, config.index_head_dim});
  operands.k = layer_norm(linear(h, indexer.get<T>("wk.weight"), Array<T>()), indexer.get<T>("k_norm.weight"),
                          indexer.get<T>("k_norm.bias"), kIndexerNormEps);
  operands.gate = linear(h, indexer.get<T>("index_kpool_compress_gate"), Array<T>());
  operands.weights = head_weights(h, indexer.get<T>("weights_proj.weight"), config.index_head_dim);
  operands.ape = indexer.get<T>("index_kpool_compress_ape");
  return operands;
}

/// The selection of one row of the batch, as the observer leaves it.
template <class T>
Decision<T> select_row(const ModelConfig& config, const Row& row, const IndexerOperands<T>& operands) {
  const std::int64_t end = row.begin + row.length;
  const Array<T> q = rows_between(operands.q, row.begin, end), weights = rows_between(operands.weights, row.begin, end);
  const KPool<T> pools =
      kpool_compress(rows_between(operands.k, row.begin, end), rows_between(operands.gate, row.begin, end),
                     operands.ape, config.index_kpool, row.documents);
  const auto balls = [](const Array<T>& x) {
    Array<Ball> result(x.shape);
    for (std::int64_t i = 0; i < x.size(); ++i) result[i] = to_ball(x[i]);
    return result;
  };
  const Array<Ball> q_balls = balls(q), pooled_balls = balls(pools.pooled), weight_balls = balls(weights);
  const Selection selection = select_tokens(
      pools.first_token, row.visible_start, row.visible_end, config.index_topk, config.index_kpool,
      config.index_kpool_always_select_tail,
      [&](std::int64_t t, std::int64_t p) {
        return index_score(q_balls, pooled_balls, weight_balls, t, p, true, std::nullopt);
      },
      !std::is_same_v<T, Ball>);
  Decision<T> decision;
  decision.chosen = selection.ids;
  decision.margin = selection.margin;
  decision.tied = selection.tied;
  decision.scores = index_scores(q, pools.pooled, weights, true, std::nullopt);
  decision.first_token = pools.first_token;
  decision.kpool = config.index_kpool;
  decision.visible_start = row.visible_start;
  decision.visible_end = row.visible_end;
  return decision;
}

/// Ids of one row as attention reads them. Where a query may see nothing and the convention is to attend uniformly, all
/// tokens of the row are listed and the query is cleared: equal scores give equal weights.
template <class T>
Index attended(const Index& selected, const Row& row, const Conventions& conventions, Array<T>& q) {
  const std::int64_t width = selected.dim(1);
  Index ids({row.length, std::max(width, conventions.empty_row_attends_uniformly ? row.length : width)});
  std::fill(ids.data.begin(), ids.data.end(), -1);
  for (std::int64_t t = 0; t < row.length; ++t) {
    bool any = false;
    for (std::int64_t j = 0; j < width; ++j) {
      ids.at(t, j) = selected.at(row.begin + t, j);
      any = any || ids.at(t, j) >= 0;
    }
    if (any || !conventions.empty_row_attends_uniformly) continue;
    for (std::int64_t s = 0; s < row.length; ++s) ids.at(t, s) = s;
    const std::int64_t values = q.dim(1) * q.dim(2);
    std::fill(q.row(t, values), q.row(t, values) + values, T(0.0));
  }
  return ids;
}

}  // namespace

template <class T>
Array<T> dsa_layer(const Pass<T>& pass, const Weights& attention, const Array<T>& h, const std::string& path,
                   bool own_indexer, Index& selected) {
  const ModelConfig& config = pass.config;
  const std::int64_t tokens = h.dim(0), heads = config.num_attention_heads;
  const std::int64_t key_dim = config.qk_nope_head_dim, value_dim = config.v_head_dim;
  const auto projected = [&](const Array<T>& x, const std::string& name) {
    return linear(x, attention.get<T>(name + ".weight"), Array<T>());
  };
  const auto normed = [&](const Array<T>& x, const std::string& name) {
    return rms_norm(x, attention.get<T>(name + ".weight"), config.rms_norm_eps);
  };
  const Array<T> query_latent = normed(projected(h, "q_a_proj"), "q_a_layernorm");
  const Array<T> latent = normed(projected(h, "kv_a_proj_with_mqa"), "kv_a_layernorm");

  const std::int64_t width = config.index_topk + (config.index_kpool_always_select_tail ? config.index_kpool - 1 : 0);
  if (own_indexer) {
    const IndexerOperands<T> operands = indexer_operands(attention.below("indexer."), h, query_latent);
    selected = Index({tokens, width});
    for (std::size_t b = 0; b < pass.rows.size(); ++b) {
      const Row& row = pass.rows[b];
      Decision<T> decision = select_row(config, row, operands);
      pass.observer.decision(path + "select[" + std::to_string(b) + "]", decision);
      ASSAY_CHECK(decision.chosen.size() == row.length * width);
      std::copy(decision.chosen.data.begin(), decision.chosen.data.end(), selected.data.begin() + row.begin * width);
    }
  } else if (selected.size() != tokens * width) {
    throw InputError("indexer_types", "a shared indexer with no full indexer in the sparse layers just before it",
                     "the first sparse layer, and the first after a linear_attention layer, must be \"full\"");
  }

  const Array<T> q = projected(query_latent, "q_b_proj").reshaped({tokens, heads, key_dim});
  const Array<T> kv = projected(latent, "kv_b_proj");
  Array<T> k({tokens, heads, key_dim}), v({tokens, heads, value_dim});
  for (std::int64_t th = 0; th < tokens * heads; ++th) {
    const T* both = kv.row(th, key_dim + value_dim);
    std::copy(both, both + key_dim, k.row(th, key_dim));
    std::copy(both + key_dim, both + key_dim + value_dim, v.row(th, value_dim));
  }
  Array<T> output({tokens, heads * value_dim});
  for (std::size_t b = 0; b < pass.rows.size(); ++b) {
    const Row& row = pass.rows[b];
    const std::int64_t end = row.begin + row.length;
    Array<T> queries = rows_between(q, row.begin, end);
    const Index ids = attended(selected, row, pass.conventions, queries);
    MaskedAttention<T> part = mla_attention(queries, rows_between(k, row.begin, end), rows_between(v, row.begin, end),
                                            ids, inverse_root<T>(key_dim));
    part.weights = pass.stage(path + "attention_weights[" + std::to_string(b) + "]", std::move(part.weights));
    std::copy(part.o.data.begin(), part.o.data.end(), output.row(row.begin, heads * value_dim));
  }
  return pass.stage(path + "out", projected(output, "o_proj"));
}

#define ASSAY_INSTANTIATE(T) \
  template Array<T> dsa_layer(const Pass<T>&, const Weights&, const Array<T>&, const std::string&, bool, Index&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
