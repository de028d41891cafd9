#include "reference/ops/head_backward.h"

#include <algorithm>
#include <numeric>

#include "reference/decide.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

std::string ids_below(std::int64_t count) { return "an id in [0, " + std::to_string(count) + ")"; }

template <class T>
T sum(const T* x, std::int64_t n) {
  const T one(1.0);
  return dot(x, 1, &one, 0, n);
}

/// softmax of one row; the subtracted number is exact.
template <class T>
void softmax(const T* x, std::int64_t n, T* p) {
  double shift = midpoint(x[0]);
  for (std::int64_t i = 1; i < n; ++i) shift = std::max(shift, midpoint(x[i]));
  for (std::int64_t i = 0; i < n; ++i) p[i] = exp(x[i] - T(shift));
  const T total = sum(p, n);
  for (std::int64_t i = 0; i < n; ++i) p[i] = p[i] / total;
}

}  // namespace

template <class T>
Array<T> embed_backward(const Index& ids, std::int64_t vocabulary, std::int64_t width, const Array<T>& dy,
                        std::optional<std::int64_t> padding_row) {
  std::vector<std::vector<std::int64_t>> tokens(static_cast<std::size_t>(vocabulary));
  for (std::int64_t t = 0; t < ids.size(); ++t) {
    if (ids[t] < 0 || ids[t] >= vocabulary)
      throw InputError("ids[" + std::to_string(t) + "]", std::to_string(ids[t]), ids_below(vocabulary));
    if (ids[t] != padding_row) tokens[static_cast<std::size_t>(ids[t])].push_back(t);
  }
  Array<T> d_table({vocabulary, width});
  if (dy.size() == 0) return d_table;
  parallel_for(vocabulary, [&](std::int64_t v) {
    const std::vector<std::int64_t>& rows = tokens[static_cast<std::size_t>(v)];
    if (rows.empty()) return;
    std::vector<T> values(rows.size());
    for (std::int64_t c = 0; c < width; ++c) {
      for (std::size_t i = 0; i < rows.size(); ++i) values[i] = dy.at(rows[i], c);
      d_table.at(v, c) = sum(values.data(), static_cast<std::int64_t>(values.size()));
    }
  });
  return d_table;
}

template <class T>
Array<T> cross_entropy_backward(const Array<T>& logits, const Index& labels, std::int64_t ignore_index,
                                const Array<T>& d_loss, const Array<T>& d_mean, const Array<T>& d_lse) {
  const std::int64_t tokens = logits.dim(0), vocabulary = logits.dim(1);
  std::int64_t counted = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (labels[t] == ignore_index) continue;
    if (labels[t] < 0 || labels[t] >= vocabulary)
      throw InputError("labels[" + std::to_string(t) + "]", std::to_string(labels[t]),
                       ids_below(vocabulary) + " or ignore_index " + std::to_string(ignore_index));
    ++counted;
  }
  if (counted == 0) throw InputError("labels", "every label is ignored", "at least one token with a loss");
  const T share = d_mean.size() ? T(d_mean[0] / T(static_cast<double>(counted))) : T(0.0);
  Array<T> d_logits(logits.shape);
  parallel_for(tokens, [&](std::int64_t t) {
    const bool counts = labels[t] != ignore_index;
    T d_loss_here(0.0), d_lse_here(0.0);
    if (counts) d_loss_here = d_loss.size() ? T(d_loss[t] + share) : share;
    if (d_lse.size()) d_lse_here = d_lse[t];
    T* d = d_logits.row(t, vocabulary);
    softmax(logits.row(t, vocabulary), vocabulary, d);
    for (std::int64_t i = 0; i < vocabulary; ++i) {
      const T through_loss = counts && i == labels[t] ? T(d_loss_here * (d[i] - T(1.0))) : T(d_loss_here * d[i]);
      d[i] = round_at(point("cross_entropy.backward/d_logits"), through_loss + d_lse_here * d[i]);
    }
  });
  return d_logits;
}

template <class T>
Array<T> aux_loss_backward(const Array<T>& logits, std::int64_t topk, const Array<T>& d_loss) {
  const std::int64_t rows = logits.dim(0), experts = logits.dim(1);
  if (topk < 1 || topk > experts)
    throw InputError("aux_loss: topk", std::to_string(topk), "1 to " + std::to_string(experts));
  if (rows == 0) throw InputError("aux_loss: logits", "no rows", "at least one");
  Array<T> d_logits(logits.shape);
  if (d_loss.size() == 0) return d_logits;
  const bool exact_operands =
      std::all_of(logits.data.begin(), logits.data.end(), [](const T& value) { return radius(value) == 0.0; });
  std::vector<std::int64_t> candidates(static_cast<std::size_t>(experts));
  std::iota(candidates.begin(), candidates.end(), 0);
  std::vector<std::vector<std::int64_t>> chosen(static_cast<std::size_t>(rows));
  parallel_for(rows, [&](std::int64_t r) {
    const auto score = [&](std::int64_t e) { return to_ball(logits.at(r, e)); };
    chosen[static_cast<std::size_t>(r)] = top_k(candidates, topk, score, exact_operands).winners;
  });
  std::vector<std::int64_t> counts(static_cast<std::size_t>(experts));
  for (const auto& winners : chosen)
    for (const std::int64_t e : winners) ++counts[static_cast<std::size_t>(e)];
  // One probability of one row weighs E f_e / rows = E count_e / rows^2.
  const T row_count(static_cast<double>(rows));
  std::vector<T> slope;
  for (const std::int64_t count : counts)
    slope.push_back(d_loss[0] * (T(static_cast<double>(experts)) * (T(static_cast<double>(count)) / row_count)) /
                    row_count);
  parallel_for(rows, [&](std::int64_t r) {
    std::vector<T> p(static_cast<std::size_t>(experts));
    softmax(logits.row(r, experts), experts, p.data());
    const T mean = dot(p.data(), 1, slope.data(), 1, experts);
    for (std::size_t e = 0; e < p.size(); ++e) d_logits.at(r, static_cast<std::int64_t>(e)) = p[e] * (slope[e] - mean);
  });
  return d_logits;
}

template <class T>
void add_head_backward_ops(OpTable<T>& table) {
  const auto cotangent = [](const Call<T>& call, const std::string& output) {
    return call.has("d_" + output) ? call.in("d_" + output) : Array<T>();
  };
  table["embed.backward"] = [cotangent](const Call<T>& call) {
    const Shape& shape = call.tensor("table").shape();
    return Results<T>{{"d_table", embed_backward(call.index("ids"), shape[0], shape[1], cotangent(call, "x"))}};
  };
  table["cross_entropy.backward"] = [cotangent](const Call<T>& call) {
    return Results<T>{
        {"d_logits", cross_entropy_backward(call.in("logits"), call.index("labels"), call.integer("ignore_index"),
                                            cotangent(call, "loss"), cotangent(call, "mean"), cotangent(call, "lse"))}};
  };
  table["aux_loss.backward"] = [cotangent](const Call<T>& call) {
    return Results<T>{
        {"d_logits", aux_loss_backward(call.in("logits"), call.integer("topk"), cotangent(call, "loss"))}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                             \
  template Array<T> embed_backward(const Index&, std::int64_t, std::int64_t, const Array<T>&,            \
                                   std::optional<std::int64_t>);                                         \
  template Array<T> cross_entropy_backward(const Array<T>&, const Index&, std::int64_t, const Array<T>&, \
                                           const Array<T>&, const Array<T>&);                            \
  template Array<T> aux_loss_backward(const Array<T>&, std::int64_t, const Array<T>&);                   \
  template void add_head_backward_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
