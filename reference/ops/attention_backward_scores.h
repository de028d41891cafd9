// The part of the attention backward that all its forms share: from the cotangents to the gradients of the scores.
// Used by attention_backward*.cpp only.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "reference/array.h"
#include "reference/parallel.h"

namespace assay::reference {

/// A query that selected a token, and the place of the token in the query's ascending list.
struct SelectingQuery {
  std::int64_t token;
  std::int64_t slot;
};

/// ids [T, W] read both ways. Throws InputError for an id outside [-1, S), an id twice in a row, and for a number of
/// rows that is not T.
struct Selected {
  std::int64_t width;
  std::vector<std::vector<std::int64_t>> tokens;     ///< of each query, ascending
  std::vector<std::vector<SelectingQuery>> queries;  ///< of each token, ascending

  Selected(const Index& ids, std::int64_t query_count, std::int64_t token_count)
      : width(ids.dim(1)),
        tokens(static_cast<std::size_t>(query_count)),
        queries(static_cast<std::size_t>(token_count)) {
    if (ids.dim(0) != query_count)
      throw InputError("ids", std::to_string(ids.dim(0)) + " rows",
                       "one for each query, " + std::to_string(query_count));
    for (std::int64_t t = 0; t < query_count; ++t) {
      std::vector<std::int64_t>& row = tokens[static_cast<std::size_t>(t)];
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t id = ids.at(t, i);
        if (id < -1 || id >= token_count)
          throw InputError("ids", std::to_string(id) + " in row " + std::to_string(t),
                           "-1 or a token below " + std::to_string(token_count));
        if (id >= 0) row.push_back(id);
      }
      std::sort(row.begin(), row.end());
      const auto twice = std::adjacent_find(row.begin(), row.end());
      if (twice != row.end())
        throw InputError("ids", std::to_string(*twice) + " twice in row " + std::to_string(t), "each token once");
      for (std::size_t i = 0; i < row.size(); ++i)
        queries[static_cast<std::size_t>(row[i])].push_back({t, static_cast<std::int64_t>(i)});
    }
  }
};

template <class T>
struct ScoreGradients {
  Array<T> probabilities;  ///< [T, H, W] by slot, rounded
  Array<T> d_scores;       ///< [T, H, W] gradients of the scaled scores by slot, rounded
};

/// A row of scores, not empty: the powers and their sum give the output as in the forward, the probabilities are
/// exp(score - lse) as from a saved lse.
template <class T>
struct RowSoftmax {
  std::vector<T> powers;  ///< exp(score - shift), rounded
  T sum{0.0};
  std::vector<T> probabilities;

  explicit RowSoftmax(const std::vector<T>& scores) : powers(scores.size()), probabilities(scores.size()) {
    double largest = midpoint(scores.front());
    for (const T& score : scores) largest = std::max(largest, midpoint(score));
    const T shift(largest), one(1.0);
    for (std::size_t i = 0; i < scores.size(); ++i) powers[i] = exp(T(scores[i] - shift));
    sum = dot(powers.data(), 1, &one, 0, static_cast<std::ptrdiff_t>(scores.size()));
    const T lse = log(sum) + shift;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      probabilities[i] = exp(T(scores[i] - lse));
      powers[i] = round_at(point("mla_attention.backward/p_unnormalised"), powers[i]);
    }
  }
};

/// key(s, h) points at a key of D channels, value(s, h) at a value of dv. d_o [T, H, dv], d_weights [T, H, S] and d_lse
/// [T, H] may be empty. Writes d_q.
template <class T, class Key, class Value>
ScoreGradients<T> score_gradients(const Array<T>& q, const Selected& selected, const T& scale, const Key& key,
                                  const Value& value, std::int64_t dv, const Array<T>& d_o, const Array<T>& d_weights,
                                  const Array<T>& d_lse, Array<T>& d_q) {
  const std::int64_t heads = q.dim(1), d = q.dim(2);
  const auto token_count = static_cast<std::int64_t>(selected.queries.size());
  ASSAY_CHECK(d_o.size() == 0 || d_o.size() == q.dim(0) * heads * dv);
  ASSAY_CHECK(d_weights.size() == 0 || d_weights.size() == q.dim(0) * heads * token_count);
  ASSAY_CHECK(d_lse.size() == 0 || d_lse.size() == q.dim(0) * heads);
  ScoreGradients<T> result{Array<T>({q.dim(0), heads, selected.width}), Array<T>({q.dim(0), heads, selected.width})};
  parallel_for(q.dim(0) * heads, [&](std::int64_t row) {
    const std::int64_t h = row % heads;
    const std::vector<std::int64_t>& tokens = selected.tokens[static_cast<std::size_t>(row / heads)];
    if (tokens.empty()) return;
    const auto n = static_cast<std::ptrdiff_t>(tokens.size());
    std::vector<T> scores, column(tokens.size()), dp(tokens.size(), T(0.0));
    for (const std::int64_t s : tokens)
      scores.push_back(round_at(point("mla_attention/scores"), dot(q.row(row, d), 1, key(s, h), 1, d)) * scale);
    const RowSoftmax<T> p(scores);
    T delta(0.0);
    if (d_o.size()) {
      std::vector<T> o(static_cast<std::size_t>(dv));
      for (std::int64_t c = 0; c < dv; ++c) {
        for (std::size_t i = 0; i < tokens.size(); ++i) column[i] = value(tokens[i], h)[c];
        o[static_cast<std::size_t>(c)] = round_at(point("mla_attention.backward/o"), T(dot(p.powers.data(), 1, column.data(), 1, n) / p.sum));
      }
      delta = dot(d_o.row(row, dv), 1, o.data(), 1, dv);
      for (std::size_t i = 0; i < tokens.size(); ++i)
        dp[i] = round_at(point("mla_attention.backward/d_p"), dot(d_o.row(row, dv), 1, value(tokens[i], h), 1, dv));
    }
    if (d_weights.size()) {
      for (std::size_t i = 0; i < tokens.size(); ++i) column[i] = d_weights.row(row, token_count)[tokens[i]];
      delta = delta + dot(p.probabilities.data(), 1, column.data(), 1, n);
      for (std::size_t i = 0; i < tokens.size(); ++i) dp[i] = dp[i] + column[i];
    }
    if (d_lse.size()) delta = delta - d_lse[row];
    T* d_scores = result.d_scores.row(row, selected.width);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      d_scores[i] = round_at(point("mla_attention.backward/d_scores"), T(p.probabilities[i] * (dp[i] - delta)));
      result.probabilities.row(row, selected.width)[i] = round_at(point("mla_attention.backward/p"), p.probabilities[i]);
    }
    for (std::int64_t c = 0; c < d; ++c) {
      for (std::size_t i = 0; i < tokens.size(); ++i) column[i] = key(tokens[i], h)[c];
      d_q.row(row, d)[c] = round_at(point("mla_attention.backward/d_q"), T(dot(d_scores, 1, column.data(), 1, n) * scale));
    }
  });
  return result;
}

}  // namespace assay::reference
