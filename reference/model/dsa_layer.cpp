#include <algorithm>
#include <numeric>
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

/// The queries of a row, apart by whether they may see anything.
struct Queries {
  std::vector<std::int64_t> seeing, empty;  ///< positions in the row
};

Queries queries_of(const Index& selected, const Row& row) {
  Queries queries;
  const std::int64_t width = selected.dim(1);
  for (std::int64_t t = 0; t < row.length; ++t) {
    const std::int64_t* ids = selected.row(row.begin + t, width);
    const bool any = std::any_of(ids, ids + width, [](std::int64_t id) { return id >= 0; });
    (any ? queries.seeing : queries.empty).push_back(t);
  }
  return queries;
}

Index rows_of_index(const Index& selected, std::int64_t begin, const std::vector<std::int64_t>& positions) {
  const std::int64_t width = selected.dim(1);
  Index rows({static_cast<std::int64_t>(positions.size()), width});
  for (std::size_t i = 0; i < positions.size(); ++i)
    std::copy_n(selected.row(begin + positions[i], width), width, rows.row(static_cast<std::int64_t>(i), width));
  return rows;
}

/// Every token of the row, for each of `count` queries.
Index whole_row(std::int64_t count, std::int64_t length) {
  Index ids({count, length});
  for (std::int64_t t = 0; t < count; ++t) std::iota(ids.row(t, length), ids.row(t, length) + length, 0);
  return ids;
}

/// lo, lo + 1, ... hi - 1.
std::vector<std::int64_t> range(std::int64_t lo, std::int64_t hi) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(hi - lo));
  std::iota(values.begin(), values.end(), lo);
  return values;
}

}  // namespace

template <class T>
Var<T> dsa_layer(const Pass<T>& pass, const Weights& attention, const Var<T>& h, const std::string& path,
                 bool own_indexer, Index& selected) {
  using G = Graph<T>;
  using M = Moves<T>;
  Tape<T>& tape = pass.tape;
  const ModelConfig& config = pass.config;
  const std::int64_t tokens = h->value.dim(0), heads = config.num_attention_heads;
  const std::int64_t key_dim = config.qk_nope_head_dim, value_dim = config.v_head_dim, both = key_dim + value_dim;
  const auto projected = [&](const Var<T>& x, const std::string& name) {
    return G::linear(tape, x, pass.weight(attention, name + ".weight"));
  };
  const auto normed = [&](const Var<T>& x, const std::string& name) {
    return G::rms_norm(tape, x, pass.weight(attention, name + ".weight"), config.rms_norm_eps);
  };
  const Var<T> query_latent = normed(projected(h, "q_a_proj"), "q_a_layernorm");
  const Var<T> latent = normed(projected(h, "kv_a_proj_with_mqa"), "kv_a_layernorm");

  const std::int64_t width = config.index_topk + (config.index_kpool_always_select_tail ? config.index_kpool - 1 : 0);
  if (own_indexer) {
    // Selections carry no gradient: the indexer works on values.
    const IndexerOperands<T> operands = indexer_operands(attention.below("indexer."), h->value, query_latent->value);
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

  const Var<T> q = M::reshaped(tape, projected(query_latent, "q_b_proj"), {tokens, heads, key_dim});
  const Var<T> kv = projected(latent, "kv_b_proj");
  const Var<T> k = M::reshaped(tape, M::columns(tape, kv, both, 0, key_dim), {tokens, heads, key_dim});
  const Var<T> v = M::reshaped(tape, M::columns(tape, kv, both, key_dim, value_dim), {tokens, heads, value_dim});
  const T scale = inverse_root<T>(key_dim);
  std::vector<Var<T>> parts;
  for (std::size_t b = 0; b < pass.rows.size(); ++b) {
    const Row& row = pass.rows[b];
    const std::vector<std::int64_t> own = range(row.begin, row.begin + row.length);
    const Var<T> keys = M::gathered(tape, k, own), values = M::gathered(tape, v, own);
    std::vector<Var<T>> outputs, weights;
    const auto attend = [&](const std::vector<std::int64_t>& positions, const Index& ids, bool uniformly) {
      if (positions.empty()) return;
      std::vector<std::int64_t> tokens_of(positions);
      for (std::int64_t& t : tokens_of) t += row.begin;
      const Var<T> queries = M::gathered(tape, q, tokens_of);
      const AttentionVars<T> part = uniformly ? G::uniform_attention(tape, queries, keys, values, ids, scale)
                                              : G::mla_attention(tape, queries, keys, values, ids, scale);
      const auto count = static_cast<std::int64_t>(positions.size());
      outputs.push_back(M::placed(tape, M::reshaped(tape, part.o, {count, heads * value_dim}), positions, row.length));
      weights.push_back(
          M::placed(tape, M::reshaped(tape, part.weights, {count, heads * row.length}), positions, row.length));
    };
    if (pass.conventions.empty_row_attends_uniformly) {
      const Queries queries = queries_of(selected, row);
      attend(queries.seeing, rows_of_index(selected, row.begin, queries.seeing), false);
      attend(queries.empty, whole_row(static_cast<std::int64_t>(queries.empty.size()), row.length), true);
    } else {
      const std::vector<std::int64_t> all = range(0, row.length);
      attend(all, rows_of_index(selected, row.begin, all), false);
    }
    const Var<T> dense = M::assembled(tape, weights);
    pass.stage(path + "attention_weights[" + std::to_string(b) + "]",
               M::reshaped(tape, dense, {row.length, heads, row.length}));
    parts.push_back(M::placed(tape, M::assembled(tape, outputs), own, tokens));
  }
  return pass.stage(path + "out", projected(M::assembled(tape, parts), "o_proj"));
}

#define ASSAY_INSTANTIATE(T) \
  template Var<T> dsa_layer(const Pass<T>&, const Weights&, const Var<T>&, const std::string&, bool, Index&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
