#include "reference/ops/attention_backward.h"

#include <algorithm>
#include <string>

#include "reference/ops/attention_backward_scores.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

template <class T>
Array<T> cotangent(const Call<T>& call, const char* operand) {
  return call.has(operand) ? call.in(operand) : Array<T>();
}

/// sum over the queries that selected token s, in order, of factor[t, h, slot] * rows[t, h]: `heads` [first, last) in
/// turn for each query; one value per channel.
template <class T>
std::vector<T> sum_over_queries(const std::vector<SelectingQuery>& queries, const Array<T>& factor,
                                const Array<T>& rows, std::int64_t first, std::int64_t last) {
  const std::int64_t heads = rows.dim(1), width = rows.dim(2);
  std::vector<T> factors, column;
  std::vector<const T*> sources;
  for (const SelectingQuery& query : queries)
    for (std::int64_t h = first; h < last; ++h) {
      factors.push_back(factor.at(query.token, h, query.slot));
      sources.push_back(rows.row(query.token * heads + h, width));
    }
  const auto n = static_cast<std::ptrdiff_t>(factors.size());
  column.resize(factors.size());
  std::vector<T> sums(static_cast<std::size_t>(width), T(0.0));
  for (std::int64_t c = 0; c < width; ++c) {
    for (std::size_t i = 0; i < sources.size(); ++i) column[i] = sources[i][c];
    sums[static_cast<std::size_t>(c)] = dot(factors.data(), 1, column.data(), 1, n);
  }
  return sums;
}

}  // namespace

template <class T>
AttentionGradients<T> mla_attention_backward(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Index& ids,
                                             const T& scale, const Array<T>& d_o, const Array<T>& d_weights,
                                             const Array<T>& d_lse) {
  const std::int64_t heads = q.dim(1), d = q.dim(2), tokens = k.dim(0), dv = v.dim(2);
  const Selected selected(ids, q.dim(0), tokens);
  AttentionGradients<T> result{Array<T>(q.shape), Array<T>(k.shape), Array<T>(v.shape)};
  const ScoreGradients<T> scores = score_gradients<T>(
      q, selected, scale, [&](std::int64_t s, std::int64_t h) { return k.row(s * heads + h, d); },
      [&](std::int64_t s, std::int64_t h) { return v.row(s * heads + h, dv); }, dv, d_o, d_weights, d_lse, result.d_q);
  parallel_for(tokens * heads, [&](std::int64_t row) {
    const std::int64_t s = row / heads, h = row % heads;
    const std::vector<SelectingQuery>& queries = selected.queries[static_cast<std::size_t>(s)];
    if (queries.empty()) return;
    const std::vector<T> as_key = sum_over_queries(queries, scores.d_scores, q, h, h + 1);
    for (std::int64_t i = 0; i < d; ++i)
      result.d_k.at(s, h, i) = round_at(point("mla_attention.backward/d_k"), T(as_key[static_cast<std::size_t>(i)] * scale));
    if (d_o.size() == 0) return;
    const std::vector<T> as_value = sum_over_queries(queries, scores.probabilities, d_o, h, h + 1);
    for (std::int64_t i = 0; i < dv; ++i)
      result.d_v.at(s, h, i) = round_at(point("mla_attention.backward/d_v"), as_value[static_cast<std::size_t>(i)]);
  });
  return result;
}

template <class T>
SparseAttentionGradients<T> sparse_attention_backward(const Array<T>& q, const Array<T>& c, const Index& ids,
                                                      const T& scale, std::int64_t value_dim, const Array<T>& d_o,
                                                      const Array<T>& d_lse) {
  const std::int64_t heads = q.dim(1), d = q.dim(2), tokens = c.dim(0);
  if (value_dim < 1 || value_dim > d)
    throw InputError("value_dim", std::to_string(value_dim), "1 to the width of c, " + std::to_string(d));
  const Selected selected(ids, q.dim(0), tokens);
  SparseAttentionGradients<T> result{Array<T>(q.shape), Array<T>(c.shape)};
  const auto latent = [&](std::int64_t s, std::int64_t) { return c.row(s, d); };
  const ScoreGradients<T> scores =
      score_gradients<T>(q, selected, scale, latent, latent, value_dim, d_o, Array<T>(), d_lse, result.d_q);
  parallel_for(tokens, [&](std::int64_t s) {
    const std::vector<SelectingQuery>& queries = selected.queries[static_cast<std::size_t>(s)];
    if (queries.empty()) return;
    const std::vector<T> as_key = sum_over_queries(queries, scores.d_scores, q, 0, heads);
    for (std::int64_t i = 0; i < d; ++i)
      result.d_c.at(s, i) = round_at(point("sparse_attention.backward/d_c_as_key"), T(as_key[static_cast<std::size_t>(i)] * scale));
    if (d_o.size() == 0) return;
    const std::vector<T> as_value = sum_over_queries(queries, scores.probabilities, d_o, 0, heads);
    for (std::int64_t i = 0; i < value_dim; ++i)
      result.d_c.at(s, i) =
          round_at(point("sparse_attention.backward/d_c"), T(result.d_c.at(s, i) + round_at(point("sparse_attention.backward/d_c_as_value"), as_value[static_cast<std::size_t>(i)])));
  });
  return result;
}

template <class T>
void add_attention_backward_ops(OpTable<T>& table) {
  table["sparse_attention.backward"] = [](const Call<T>& call) {
    const Array<T> c = call.in("c");
    const auto value_dim = call.optional_real("value_dim");
    SparseAttentionGradients<T> g = sparse_attention_backward(
        call.in("q"), c, call.index("ids"), constant<T>(call.real("scale")),
        value_dim ? call.integer("value_dim") : c.dim(1), cotangent(call, "d_o"), cotangent(call, "d_lse"));
    return Results<T>{{"d_q", std::move(g.d_q)}, {"d_c", std::move(g.d_c)}};
  };
  table["mla_attention.backward"] = [](const Call<T>& call) {
    AttentionGradients<T> g = mla_attention_backward(call.in("q"), call.in("k"), call.in("v"), call.index("ids"),
                                                     constant<T>(call.real("scale")), cotangent(call, "d_o"),
                                                     cotangent(call, "d_weights"), cotangent(call, "d_lse"));
    return Results<T>{{"d_q", std::move(g.d_q)}, {"d_k", std::move(g.d_k)}, {"d_v", std::move(g.d_v)}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                      \
  template AttentionGradients<T> mla_attention_backward(const Array<T>&, const Array<T>&, const Array<T>&,        \
                                                        const Index&, const T&, const Array<T>&, const Array<T>&, \
                                                        const Array<T>&);                                         \
  template SparseAttentionGradients<T> sparse_attention_backward(                                                 \
      const Array<T>&, const Array<T>&, const Index&, const T&, std::int64_t, const Array<T>&, const Array<T>&);  \
  template void add_attention_backward_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
