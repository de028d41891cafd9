#include "reference/ops/attention.h"

#include <algorithm>
#include <limits>
#include <string>

#include "reference/parallel.h"

namespace assay::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The ids of row t in ascending order, checked.
std::vector<std::int64_t> selected(const Index& ids, std::int64_t t, std::int64_t tokens) {
  const std::int64_t width = ids.dim(1);
  std::vector<std::int64_t> row;
  for (std::int64_t i = 0; i < width; ++i) {
    const std::int64_t id = ids.at(t, i);
    if (id < -1 || id >= tokens)
      throw InputError("ids", std::to_string(id) + " in row " + std::to_string(t),
                       "-1 or a token below " + std::to_string(tokens));
    if (id >= 0) row.push_back(id);
  }
  std::sort(row.begin(), row.end());
  const auto twice = std::adjacent_find(row.begin(), row.end());
  if (twice != row.end())
    throw InputError("ids", std::to_string(*twice) + " twice in row " + std::to_string(t), "each token once");
  return row;
}

void check_rows(const Index& ids, std::int64_t queries) {
  if (ids.dim(0) != queries)
    throw InputError("ids", std::to_string(ids.dim(0)) + " rows", "one for each query, " + std::to_string(queries));
}

template <class T>
struct Softmax {
  std::vector<T> powers;  ///< exp(score - shift)
  T sum{0.0};
  T lse{-kInfinity};
};

/// The unnormalised softmax of some scores, not empty. The shift is an exact number near the largest score: it cancels,
/// and the scores stay independent of each other.
template <class T>
Softmax<T> softmax(const std::vector<T>& scores) {
  double largest = -kInfinity;
  for (const T& score : scores) largest = std::max(largest, midpoint(score));
  const T shift(largest);
  Softmax<T> result;
  for (const T& score : scores) result.powers.push_back(exp(T(score - shift)));
  const std::vector<T> ones(scores.size(), T(1.0));
  result.sum = dot(result.powers.data(), 1, ones.data(), 1, static_cast<std::ptrdiff_t>(scores.size()));
  result.lse = log(result.sum) + shift;
  return result;
}

/// o = sum p v with one division: probabilities rounded before or after their division by the sum are both covered.
template <class T>
T weighted_value(const std::vector<T>& rounded_powers, const std::vector<T>& values, const T& sum) {
  const auto n = static_cast<std::ptrdiff_t>(values.size());
  return round_at(point("mla_attention/o"), T(dot(rounded_powers.data(), 1, values.data(), 1, n) / sum));
}

template <class T>
std::vector<T> rounded_to_activation(const std::vector<T>& values) {
  std::vector<T> result;
  result.reserve(values.size());
  for (const T& value : values) result.push_back(round_at(point("mla_attention/p_unnormalised"), value));
  return result;
}

/// One query of one head over the rows `tokens`: key(s) points at a key of d channels, value(s) at a value of dv.
template <class T, class Key, class Value>
Softmax<T> attend(const T* query, std::int64_t d, const std::vector<std::int64_t>& tokens, const T& scale,
                  const Key& key, const Value& value, std::int64_t dv, T* o) {
  if (tokens.empty()) {
    std::fill_n(o, dv, T(0.0));
    return {};
  }
  std::vector<T> scores;
  for (const std::int64_t s : tokens)
    scores.push_back(round_at(point("mla_attention/scores"), dot(query, 1, key(s), 1, d)) * scale);
  Softmax<T> result = softmax(scores);
  const std::vector<T> powers = rounded_to_activation(result.powers);
  std::vector<T> column(tokens.size());
  for (std::int64_t c = 0; c < dv; ++c) {
    for (std::size_t i = 0; i < tokens.size(); ++i) column[i] = value(tokens[i])[c];
    o[c] = weighted_value(powers, column, result.sum);
  }
  return result;
}

template <class T>
MaskedAttention<T> empty_attention(const Array<T>& q, const Array<T>& k, const Array<T>& v) {
  return {Array<T>({q.dim(0), q.dim(1), v.dim(2)}), Array<T>({q.dim(0), q.dim(1), k.dim(0)}),
          Array<T>({q.dim(0), q.dim(1)})};
}

}  // namespace

template <class T>
MaskedAttention<T> mla_attention(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Index& ids,
                                 const T& scale) {
  const std::int64_t heads = q.dim(1), d = q.dim(2), tokens = k.dim(0), dv = v.dim(2);
  check_rows(ids, q.dim(0));
  MaskedAttention<T> result = empty_attention(q, k, v);
  parallel_for(q.dim(0), [&](std::int64_t t) {
    const std::vector<std::int64_t> row = selected(ids, t, tokens);
    for (std::int64_t h = 0; h < heads; ++h) {
      const Softmax<T> p = attend(
          q.row(t * heads + h, d), d, row, scale, [&](std::int64_t s) { return k.row(s * heads + h, d); },
          [&](std::int64_t s) { return v.row(s * heads + h, dv); }, dv, result.o.row(t * heads + h, dv));
      for (std::size_t i = 0; i < row.size(); ++i)
        result.weights.at(t, h, row[i]) = round_at(point("mla_attention/p"), T(p.powers[i] / p.sum));
      result.lse.at(t, h) = p.lse;
    }
  });
  return result;
}

template <class T>
MaskedAttention<T> mla_attention_masked(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Index& ids,
                                        const T& scale) {
  const std::int64_t heads = q.dim(1), d = q.dim(2), tokens = k.dim(0), dv = v.dim(2);
  check_rows(ids, q.dim(0));
  MaskedAttention<T> result = empty_attention(q, k, v);
  parallel_for(q.dim(0), [&](std::int64_t t) {
    const std::vector<std::int64_t> row = selected(ids, t, tokens);
    for (std::int64_t h = 0; h < heads; ++h) {
      result.lse.at(t, h) = T(-kInfinity);
      if (row.empty()) continue;
      std::vector<T> scores(static_cast<std::size_t>(tokens), T(-kInfinity));
      for (std::int64_t s = 0; s < tokens; ++s)
        if (std::binary_search(row.begin(), row.end(), s))
          scores[static_cast<std::size_t>(s)] =
              round_at(point("mla_attention/scores"), dot(q.row(t * heads + h, d), 1, k.row(s * heads + h, d), 1, d)) *
              scale;
      const Softmax<T> p = softmax(scores);
      for (std::int64_t s = 0; s < tokens; ++s)
        result.weights.at(t, h, s) = round_at(point("mla_attention/p"), T(p.powers[static_cast<std::size_t>(s)] / p.sum));
      for (std::int64_t c = 0; c < dv; ++c)
        result.o.at(t, h, c) =
            round_at(point("mla_attention/o"), dot(result.weights.row(t * heads + h, tokens), 1, v.row(h, dv) + c, heads * dv, tokens));
      result.lse.at(t, h) = p.lse;
    }
  });
  return result;
}

template <class T>
SparseAttention<T> sparse_attention(const Array<T>& q, const Array<T>& c, const Index& ids, const T& scale,
                                    std::int64_t value_dim) {
  const std::int64_t heads = q.dim(1), d = q.dim(2);
  if (value_dim < 1 || value_dim > d)
    throw InputError("value_dim", std::to_string(value_dim), "1 to the width of c, " + std::to_string(d));
  check_rows(ids, q.dim(0));
  SparseAttention<T> result{Array<T>({q.dim(0), heads, value_dim}), Array<T>({q.dim(0), heads})};
  const auto latent = [&](std::int64_t s) { return c.row(s, d); };
  parallel_for(q.dim(0), [&](std::int64_t t) {
    const std::vector<std::int64_t> row = selected(ids, t, c.dim(0));
    for (std::int64_t h = 0; h < heads; ++h)
      result.lse.at(t, h) = attend(q.row(t * heads + h, d), d, row, scale, latent, latent, value_dim,
                                   result.o.row(t * heads + h, value_dim))
                                .lse;
  });
  return result;
}

template <class T>
void add_attention_ops(OpTable<T>& table) {
  table["sparse_attention"] = [](const Call<T>& call) {
    const Array<T> c = call.in("c");
    const auto value_dim = call.optional_real("value_dim");
    SparseAttention<T> result = sparse_attention(call.in("q"), c, call.index("ids"), constant<T>(call.real("scale")),
                                                 value_dim ? call.integer("value_dim") : c.dim(1));
    return Results<T>{{"o", std::move(result.o)}, {"lse", std::move(result.lse)}};
  };
  table["mla_attention"] = [](const Call<T>& call) {
    MaskedAttention<T> result =
        mla_attention(call.in("q"), call.in("k"), call.in("v"), call.index("ids"), constant<T>(call.real("scale")));
    return Results<T>{
        {"o", std::move(result.o)}, {"weights", std::move(result.weights)}, {"lse", std::move(result.lse)}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                        \
  template MaskedAttention<T> mla_attention(const Array<T>&, const Array<T>&, const Array<T>&, const Index&,        \
                                            const T&);                                                              \
  template MaskedAttention<T> mla_attention_masked(const Array<T>&, const Array<T>&, const Array<T>&, const Index&, \
                                                   const T&);                                                       \
  template SparseAttention<T> sparse_attention(const Array<T>&, const Array<T>&, const Index&, const T&,            \
                                               std::int64_t);                                                       \
  template void add_attention_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
