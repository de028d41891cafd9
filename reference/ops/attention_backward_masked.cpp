// The second formulation of the attention backward: matrix products over all tokens, head by head.
#include "reference/linear_algebra.h"
#include "reference/ops/attention_backward.h"
#include "reference/ops/attention_backward_scores.h"
#include "reference/ops/linear_backward.h"

namespace assay::reference {
namespace {

/// Matrix h of x [N, H, D], or zeros of `rows` and `columns` if x is empty.
template <class T>
Array<T> head_or_zero(const Array<T>& x, std::int64_t h, std::int64_t rows, std::int64_t columns) {
  Array<T> result({rows, columns});
  if (x.size() == 0) return result;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) result.at(i, j) = x.at(i, h, j);
  return result;
}

template <class T>
void put_head(const Array<T>& matrix, std::int64_t h, Array<T>& x) {
  for (std::int64_t i = 0; i < matrix.dim(0); ++i)
    for (std::int64_t j = 0; j < matrix.dim(1); ++j) x.at(i, h, j) = round_at(point("mla_attention.backward/d_k"), matrix.at(i, j));
}

/// Probabilities [T, S] of scaled scores, 0 where not selected.
template <class T>
Array<T> masked_softmax(const Array<T>& scores, const Selected& selected) {
  Array<T> p(scores.shape);
  for (std::int64_t t = 0; t < scores.dim(0); ++t) {
    const std::vector<std::int64_t>& tokens = selected.tokens[static_cast<std::size_t>(t)];
    if (tokens.empty()) continue;
    double largest = midpoint(scores.at(t, tokens.front()));
    for (const std::int64_t s : tokens) largest = std::max(largest, midpoint(scores.at(t, s)));
    T sum(0.0);
    for (const std::int64_t s : tokens) {
      p.at(t, s) = exp(T(scores.at(t, s) - T(largest)));
      sum += p.at(t, s);
    }
    for (const std::int64_t s : tokens) p.at(t, s) = p.at(t, s) / sum;
  }
  return p;
}

}  // namespace

template <class T>
AttentionGradients<T> mla_attention_backward_masked(const Array<T>& q, const Array<T>& k, const Array<T>& v,
                                                    const Index& ids, const T& scale, const Array<T>& d_o,
                                                    const Array<T>& d_weights, const Array<T>& d_lse) {
  const std::int64_t queries = q.dim(0), heads = q.dim(1), d = q.dim(2), tokens = k.dim(0), dv = v.dim(2);
  const Selected selected(ids, queries, tokens);
  AttentionGradients<T> result{Array<T>(q.shape), Array<T>(k.shape), Array<T>(v.shape)};
  for (std::int64_t h = 0; h < heads; ++h) {
    const Array<T> q_h = head_or_zero(q, h, queries, d), k_h = head_or_zero(k, h, tokens, d);
    const Array<T> v_h = head_or_zero(v, h, tokens, dv), d_o_h = head_or_zero(d_o, h, queries, dv);
    Array<T> scores = matmul_nt(q_h, k_h);
    for (T& score : scores.data) score = score * scale;
    const Array<T> p = masked_softmax(scores, selected);
    Array<T> dp = matmul_nt(d_o_h, v_h);
    const Array<T> d_weights_h = head_or_zero(d_weights, h, queries, tokens);
    for (std::int64_t i = 0; i < dp.size(); ++i) dp[i] += d_weights_h[i];
    Array<T> d_scores(p.shape);
    for (std::int64_t t = 0; t < queries; ++t) {
      const T mean = dot(p.row(t, tokens), 1, dp.row(t, tokens), 1, tokens);
      const T shift = d_lse.size() ? T(d_lse.at(t, h) - mean) : T(-mean);
      for (std::int64_t s = 0; s < tokens; ++s) d_scores.at(t, s) = p.at(t, s) * (dp.at(t, s) + shift) * scale;
    }
    put_head(matmul_nt(d_scores, transposed(k_h)), h, result.d_q);
    put_head(matmul_nt(transposed(d_scores), transposed(q_h)), h, result.d_k);
    put_head(matmul_nt(transposed(p), transposed(d_o_h)), h, result.d_v);
  }
  return result;
}

#define ASSAY_INSTANTIATE(T)                                                                                      \
  template AttentionGradients<T> mla_attention_backward_masked(const Array<T>&, const Array<T>&, const Array<T>&, \
                                                               const Index&, const T&, const Array<T>&,           \
                                                               const Array<T>&, const Array<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
