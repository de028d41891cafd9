#include "reference/ops/head.h"

#include <algorithm>
#include <numeric>

#include "reference/decide.h"
#include "reference/ops/layout.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

std::string at(const std::string& operand, std::int64_t i) { return operand + "[" + std::to_string(i) + "]"; }

std::string ids_below(std::int64_t count) { return "an id in [0, " + std::to_string(count) + ")"; }

/// The number nearest to the largest of a row: subtracting it before exp changes nothing but the range.
template <class T>
T exact_maximum(const T* x, std::int64_t n) {
  double largest = midpoint(x[0]);
  for (std::int64_t i = 1; i < n; ++i) largest = std::max(largest, midpoint(x[i]));
  return T(largest);
}

template <class T>
T sum(const T* x, std::ptrdiff_t step, std::int64_t n) {
  const T one(1.0);
  return dot(x, step, &one, 0, n);
}

template <class T>
bool is_exact(const Array<T>& x) {
  return std::all_of(x.data.begin(), x.data.end(), [](const T& value) { return radius(value) == 0.0; });
}

}  // namespace

template <class T>
Array<T> embed(const Index& ids, const Array<T>& table) {
  const std::int64_t width = table.dim(1);
  Array<T> x({ids.size(), width});
  for (std::int64_t t = 0; t < ids.size(); ++t) {
    if (ids[t] < 0 || ids[t] >= table.dim(0))
      throw InputError(at("ids", t), std::to_string(ids[t]), ids_below(table.dim(0)));
    std::copy_n(table.row(ids[t], width), width, x.row(t, width));
  }
  return x;
}

template <class T>
CrossEntropy<T> cross_entropy(const Array<T>& logits, const Index& labels, std::int64_t ignore_index) {
  const std::int64_t tokens = logits.dim(0), vocabulary = logits.dim(1);
  std::vector<std::int64_t> counted;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (labels[t] == ignore_index) continue;
    if (labels[t] < 0 || labels[t] >= vocabulary)
      throw InputError(at("labels", t), std::to_string(labels[t]),
                       ids_below(vocabulary) + " or ignore_index " + std::to_string(ignore_index));
    counted.push_back(t);
  }
  if (counted.empty()) throw InputError("labels", "every label is ignored", "at least one token with a loss");
  CrossEntropy<T> result{Array<T>({tokens}), Array<T>({tokens}), Array<T>({1})};
  parallel_for(tokens, [&](std::int64_t t) {
    const T* row = logits.row(t, vocabulary);
    const T shift = exact_maximum(row, vocabulary);
    std::vector<T> powers(static_cast<std::size_t>(vocabulary));
    for (std::int64_t i = 0; i < vocabulary; ++i) powers[static_cast<std::size_t>(i)] = exp(row[i] - shift);
    result.lse[t] = log(sum(powers.data(), 1, vocabulary)) + shift;
    result.loss[t] = labels[t] == ignore_index ? T(0.0) : result.lse[t] - row[labels[t]];
  });
  std::vector<T> losses;
  for (const std::int64_t t : counted) losses.push_back(result.loss[t]);
  const auto count = static_cast<std::int64_t>(counted.size());
  result.mean[0] = sum(losses.data(), 1, count) / T(static_cast<double>(count));
  return result;
}

Index next_token_labels(const Index& sequence, std::int64_t ignore_index) {
  return mtp_shift(sequence, Index(), 1, ignore_index);
}

template <class T>
Array<T> aux_loss(const Array<T>& logits, std::int64_t topk) {
  const std::int64_t rows = logits.dim(0), experts = logits.dim(1);
  if (topk < 1 || topk > experts)
    throw InputError("aux_loss: topk", std::to_string(topk), "1 to " + std::to_string(experts));
  if (rows == 0) throw InputError("aux_loss: logits", "no rows", "at least one");
  const bool exact_operands = is_exact(logits);
  std::vector<std::int64_t> candidates(static_cast<std::size_t>(experts));
  std::iota(candidates.begin(), candidates.end(), 0);
  Array<T> probability({rows, experts});
  std::vector<std::vector<std::int64_t>> chosen(static_cast<std::size_t>(rows));
  parallel_for(rows, [&](std::int64_t r) {
    const T* row = logits.row(r, experts);
    // Softmax keeps the order of the logits, so the choice is taken on them.
    chosen[static_cast<std::size_t>(r)] =
        top_k(
            candidates, topk, [&](std::int64_t e) { return to_ball(row[e]); }, exact_operands)
            .winners;
    const T shift = exact_maximum(row, experts);
    T* p = probability.row(r, experts);
    for (std::int64_t e = 0; e < experts; ++e) p[e] = exp(row[e] - shift);
    const T total = sum(p, 1, experts);
    for (std::int64_t e = 0; e < experts; ++e) p[e] = p[e] / total;
  });
  std::vector<std::int64_t> counts(static_cast<std::size_t>(experts));
  for (const auto& winners : chosen)
    for (const std::int64_t e : winners) ++counts[static_cast<std::size_t>(e)];
  const T row_count(static_cast<double>(rows));
  std::vector<T> fraction, mean;
  for (std::int64_t e = 0; e < experts; ++e) {
    fraction.push_back(T(static_cast<double>(counts[static_cast<std::size_t>(e)])) / row_count);
    mean.push_back(sum(probability.data.data() + e, experts, rows) / row_count);
  }
  Array<T> loss({1});
  loss[0] = T(static_cast<double>(experts)) * dot(fraction.data(), 1, mean.data(), 1, experts);
  return loss;
}

Index mtp_shift(const Index& ids, const Index& cu_seqlens, std::int64_t by, std::int64_t fill) {
  if (by < 0) throw InputError("mtp_shift: by", std::to_string(by), "0 or more");
  const Index boundaries = cu_seqlens.size() ? cu_seqlens : Index({2}, {0, ids.size()});
  check_boundaries(boundaries, ids.size(), "cu_seqlens", Empty::kAllowed);
  Index shifted(ids.shape);
  for (std::int64_t d = 0; d + 1 < boundaries.size(); ++d)
    for (std::int64_t t = boundaries[d]; t < boundaries[d + 1]; ++t)
      shifted[t] = by < boundaries[d + 1] - t ? ids[t + by] : fill;
  return shifted;
}

template <class T>
void add_head_ops(OpTable<T>& table) {
  table["embed"] = [](const Call<T>& call) { return Results<T>{{"x", embed(call.index("ids"), call.in("table"))}}; };
  table["cross_entropy"] = [](const Call<T>& call) {
    CrossEntropy<T> result = cross_entropy(call.in("logits"), call.index("labels"), call.integer("ignore_index"));
    return Results<T>{
        {"loss", std::move(result.loss)}, {"lse", std::move(result.lse)}, {"mean", std::move(result.mean)}};
  };
  table["aux_loss"] = [](const Call<T>& call) {
    return Results<T>{{"loss", aux_loss(call.in("logits"), call.integer("topk"))}};
  };
  table["mtp_shift"] = [](const Call<T>& call) {
    const Index cu_seqlens = call.has("cu_seqlens") ? call.index("cu_seqlens") : Index();
    return Results<T>{{"shifted", mtp_shift(call.index("ids"), cu_seqlens, call.integer("by"), call.integer("fill"))}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                           \
  template Array<T> embed(const Index&, const Array<T>&);                              \
  template CrossEntropy<T> cross_entropy(const Array<T>&, const Index&, std::int64_t); \
  template Array<T> aux_loss(const Array<T>&, std::int64_t);                           \
  template void add_head_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
