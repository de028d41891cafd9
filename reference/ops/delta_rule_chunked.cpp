// The chunked form (model.md 6, "Chunked form"). Within a chunk, with G the inclusive sum of g over the chunk's tokens:
//   A[i][j] = beta_i sum_d k_i k_j exp(G_i - G_j)   for j < i            M = (I + A)^-1
//   U = M (beta v), W = M (beta k exp(G)), Vn = U - W S0
//   o_i = (q_i exp(G_i)) S0 + sum_{j<=i} [sum_d q_i k_j exp(G_i - G_j)] Vn_j
//   S1 = diag(exp(G_last)) S0 + sum_j (k_j exp(G_last - G_j)) Vn_j^T
// The exponent G_i - G_j is formed for j <= i only, where it is not positive. The rounding points are those of
// megatron.md 2.4 (scores, T, W, U, ... are stored); q is rounded before its scale there, so that the scale moves to the
// products of q where a contract rounds q, and is part of q otherwise.
#include <algorithm>
#include <string>

#include "reference/ops/delta_rule.h"
#include "reference/ops/unit_lower.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// One value head of one chunk; matrices are [tokens of the chunk, width].
template <class T>
struct Chunk {
  std::int64_t length, key_dim, value_dim;
  Array<T> q, k, v, G;
  std::vector<T> beta;
  std::optional<T> scale;  ///< of the products of q; absent: q contains it

  Chunk(std::int64_t n, std::int64_t key, std::int64_t value)
      : length(n), key_dim(key), value_dim(value), q({n, key}), k({n, key}), v({n, value}), G({n, key}) {}

  /// k_j exp(G_i - G_j), the key j as seen at token i >= j.
  std::vector<T> decayed_key(std::int64_t i, std::int64_t j) const {
    std::vector<T> result(k.row(j, key_dim), k.row(j, key_dim) + key_dim);
    if (i == j) return result;
    for (std::int64_t d = 0; d < key_dim; ++d) {
      const T exponent = G.at(i, d) - G.at(j, d);
      result[static_cast<std::size_t>(d)] *= exp(exponent);
    }
    return result;
  }
  T scaled(const T& product) const { return scale ? T(*scale * product) : product; }
};

/// Writes the chunk's outputs o [length, V] (not yet rounded) and replaces the state S [K, V].
template <class T>
void run_chunk(const Chunk<T>& c, Array<T>& state, Array<T>& o) {
  const std::int64_t n = c.length, K = c.key_dim, V = c.value_dim;
  Array<T> A({n, n}), scores({n, n});
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      const std::vector<T> key = c.decayed_key(i, j);
      scores.at(i, j) = round_at(point("delta_rule_chunked/scores"), c.scaled(dot(c.q.row(i, K), 1, key.data(), 1, K)));
      if (j < i) A.at(i, j) = c.beta[static_cast<std::size_t>(i)] * dot(c.k.row(i, K), 1, key.data(), 1, K);
    }
  }
  Array<T> M = inverse_of_unit_lower(A);
  for (T& x : M.data) x = round_at(point("delta_rule_chunked/inverse"), x);

  Array<T> beta_v({n, V}), beta_key({n, K}), query({n, K});
  for (std::int64_t i = 0; i < n; ++i) {
    const T& b = c.beta[static_cast<std::size_t>(i)];
    for (std::int64_t e = 0; e < V; ++e) beta_v.at(i, e) = round_at(point("delta_rule_chunked/beta_v"), b * c.v.at(i, e));
    for (std::int64_t d = 0; d < K; ++d) {
      const T decay = exp(c.G.at(i, d));
      beta_key.at(i, d) = round_at(point("delta_rule_chunked/beta_k"), b * c.k.at(i, d) * decay);
      query.at(i, d) = round_at(point("delta_rule_chunked/q_decayed"), c.q.at(i, d) * decay);
    }
  }
  Array<T> seen = state;
  for (T& x : seen.data) x = round_at(point("delta_rule_chunked/state"), x);
  Array<T> fresh({n, V});  // Vn
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<T> w(static_cast<std::size_t>(K));
    for (std::int64_t d = 0; d < K; ++d)
      w[static_cast<std::size_t>(d)] =
          round_at(point("delta_rule_chunked/w"), dot(M.row(i, n), 1, beta_key.data.data() + d, K, i + 1));
    for (std::int64_t e = 0; e < V; ++e) {
      const T u = round_at(point("delta_rule_chunked/u"), dot(M.row(i, n), 1, beta_v.data.data() + e, V, i + 1));
      fresh.at(i, e) =
          round_at(point("delta_rule_chunked/v_new"), u - dot(w.data(), 1, seen.data.data() + e, V, K));
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t e = 0; e < V; ++e) {
      o.at(i, e) = c.scaled(dot(query.row(i, K), 1, seen.data.data() + e, V, K)) +
                   dot(scores.row(i, n), 1, fresh.data.data() + e, V, i + 1);
    }
  }
  Array<T> key({n, K});
  for (std::int64_t j = 0; j < n; ++j) {
    const std::vector<T> row = c.decayed_key(n - 1, j);
    for (std::int64_t d = 0; d < K; ++d)
      key.at(j, d) = round_at(point("delta_rule_chunked/k_end"), row[static_cast<std::size_t>(d)]);
  }
  for (std::int64_t d = 0; d < K; ++d) {
    const T decay = exp(c.G.at(n - 1, d));
    for (std::int64_t e = 0; e < V; ++e)
      state.at(d, e) = decay * state.at(d, e) + dot(key.data.data() + d, K, fresh.data.data() + e, V, n);
  }
}

}  // namespace

template <class T>
DeltaRule<T> delta_rule_chunked(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Array<T>& g,
                                const Array<T>& beta, const Array<T>& initial_state, const Index& cu_seqlens,
                                std::optional<double> scale, std::int64_t chunk) {
  if (chunk < 1) throw InputError("delta_rule_chunked chunk", std::to_string(chunk), "at least 1");
  const DeltaRuleSizes sizes = delta_rule_sizes(q.shape, v.shape, initial_state.shape, cu_seqlens);
  const std::int64_t K = sizes.key_dim, V = sizes.value_dim, Hv = sizes.value_heads;
  const auto count = static_cast<std::int64_t>(sizes.documents.size());
  const T factor = query_scale<T>(scale, K);
  const bool scale_products = rounds_at<T>(point("delta_rule_chunked/q_decayed"));
  DeltaRule<T> result{Array<T>(v.shape), Array<T>({count, Hv, K, V})};

  parallel_for(count * Hv, [&](std::int64_t row) {
    const Document& document = sizes.documents[static_cast<std::size_t>(row / Hv)];
    const std::int64_t h = row % Hv, key_head = h / sizes.group;
    Array<T> state({K, V});
    if (initial_state.size()) std::copy_n(initial_state.row(row, K * V), K * V, state.data.begin());
    for (std::int64_t begin = document.begin; begin < document.end; begin += chunk) {
      Chunk<T> c(std::min(chunk, document.end - begin), K, V);
      if (scale_products) c.scale = factor;
      for (std::int64_t i = 0; i < c.length; ++i) {
        const std::int64_t t = begin + i;
        for (std::int64_t d = 0; d < K; ++d) {
          c.q.at(i, d) = scale_products ? q.at(t, key_head, d) : T(factor * q.at(t, key_head, d));
          c.k.at(i, d) = k.at(t, key_head, d);
          c.G.at(i, d) = i == 0 ? g.at(t, h, d) : T(c.G.at(i - 1, d) + g.at(t, h, d));
        }
        for (std::int64_t e = 0; e < V; ++e) c.v.at(i, e) = v.at(t, h, e);
        c.beta.push_back(beta.at(t, h));
      }
      Array<T> o({c.length, V});
      run_chunk(c, state, o);
      for (std::int64_t i = 0; i < c.length; ++i) {
        for (std::int64_t e = 0; e < V; ++e)
          result.o.at(begin + i, h, e) = round_at(point("delta_rule_chunked/o"), o.at(i, e));
      }
    }
    std::copy(state.data.begin(), state.data.end(), result.final_state.row(row, K * V));
  });
  return result;
}

#define ASSAY_INSTANTIATE(T)                                                                                      \
  template DeltaRule<T> delta_rule_chunked(const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&,    \
                                           const Array<T>&, const Array<T>&, const Index&, std::optional<double>, \
                                           std::int64_t);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
