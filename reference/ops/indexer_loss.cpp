#include "reference/ops/indexer_loss.h"

#include <algorithm>
#include <string>

#include "reference/parallel.h"

namespace assay::reference {
namespace {

constexpr double kLeastTarget = 1e-10;

/// The visible tokens of each row.
std::vector<std::vector<std::int64_t>> visible_tokens(const Index& visible, std::int64_t rows, std::int64_t tokens) {
  ASSAY_CHECK(visible.size() == 0 || visible.size() == rows * tokens);
  std::vector<std::vector<std::int64_t>> result(static_cast<std::size_t>(rows));
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t s = 0; s < tokens; ++s)
      if (visible.size() == 0 || visible[t * tokens + s] != 0) result[static_cast<std::size_t>(t)].push_back(s);
  return result;
}

/// coefficient / rows.
template <class T>
T weight_of_row(const std::vector<std::vector<std::int64_t>>& visible, double coefficient,
                std::optional<std::int64_t> rows) {
  if (rows && *rows < 1) throw InputError("rows", std::to_string(*rows), "at least 1");
  const std::int64_t valid =
      std::count_if(visible.begin(), visible.end(), [](const auto& tokens) { return !tokens.empty(); });
  return constant<T>(coefficient) / T(static_cast<double>(rows.value_or(std::max<std::int64_t>(valid, 1))));
}

/// The visible part of one row: target distribution, scores and the log of the sum of their exponentials.
template <class T>
struct Row {
  std::vector<T> target;
  std::vector<T> scores;
  T lse{0.0};

  Row(const Array<T>& all_scores, const Array<T>& attention, std::int64_t t, const std::vector<std::int64_t>& tokens) {
    const std::int64_t heads = attention.dim(1), width = attention.dim(2);
    const auto n = static_cast<std::ptrdiff_t>(tokens.size());
    const T one(1.0);
    for (const std::int64_t s : tokens) {
      target.push_back(dot(attention.row(t * heads, width) + s, width, &one, 0, heads));
      scores.push_back(all_scores.at(t, s));
    }
    const T sum = clamp_below(dot(target.data(), 1, &one, 0, n), kLeastTarget);
    for (T& value : target) value = value / sum;
    double largest = midpoint(scores.front());
    for (const T& score : scores) largest = std::max(largest, midpoint(score));
    std::vector<T> powers;
    for (const T& score : scores) powers.push_back(exp(T(score - T(largest))));
    lse = log(dot(powers.data(), 1, &one, 0, n)) + T(largest);
  }
};

}  // namespace

template <class T>
IndexerLoss<T> indexer_loss(const Array<T>& scores, const Array<T>& attention, const Index& visible, double coefficient,
                            std::optional<std::int64_t> rows) {
  const std::int64_t queries = scores.dim(0);
  const auto tokens = visible_tokens(visible, queries, scores.dim(1));
  const T weight = weight_of_row<T>(tokens, coefficient, rows), one(1.0);
  IndexerLoss<T> result{Array<T>({1}), Array<T>({queries})};
  parallel_for(queries, [&](std::int64_t t) {
    if (tokens[static_cast<std::size_t>(t)].empty()) return;
    const Row<T> row(scores, attention, t, tokens[static_cast<std::size_t>(t)]);
    std::vector<T> differences;
    for (std::size_t i = 0; i < row.target.size(); ++i)
      differences.push_back(log(clamp_below(row.target[i], kLeastTarget)) - (row.scores[i] - row.lse));
    result.row_loss[t] =
        dot(row.target.data(), 1, differences.data(), 1, static_cast<std::ptrdiff_t>(differences.size()));
  });
  result.loss[0] = dot(result.row_loss.data.data(), 1, &one, 0, queries) * weight;
  return result;
}

template <class T>
Array<T> indexer_loss_backward(const Array<T>& scores, const Array<T>& attention, const Index& visible,
                               double coefficient, std::optional<std::int64_t> rows, const Array<T>& d_loss,
                               const Array<T>& d_row_loss) {
  const std::int64_t queries = scores.dim(0);
  const auto tokens = visible_tokens(visible, queries, scores.dim(1));
  const T weight = weight_of_row<T>(tokens, coefficient, rows), one(1.0);
  Array<T> d_scores(scores.shape);
  if (d_loss.size() == 0 && d_row_loss.size() == 0) return d_scores;
  parallel_for(queries, [&](std::int64_t t) {
    const std::vector<std::int64_t>& seen = tokens[static_cast<std::size_t>(t)];
    if (seen.empty()) return;
    T factor(0.0);
    if (d_loss.size()) factor = d_loss[0] * weight;
    if (d_row_loss.size()) factor = d_loss.size() ? T(factor + d_row_loss[t]) : d_row_loss[t];
    const Row<T> row(scores, attention, t, seen);
    const T mass = dot(row.target.data(), 1, &one, 0, static_cast<std::ptrdiff_t>(row.target.size()));
    for (std::size_t i = 0; i < seen.size(); ++i)
      d_scores.at(t, seen[i]) = (exp(T(row.scores[i] - row.lse)) * mass - row.target[i]) * factor;
  });
  return d_scores;
}

template <class T>
void add_indexer_loss_ops(OpTable<T>& table) {
  const auto rows = [](const Call<T>& call) -> std::optional<std::int64_t> {
    return call.optional_real("rows") ? std::optional<std::int64_t>(call.integer("rows")) : std::nullopt;
  };
  const auto optional = [](const Call<T>& call, const char* operand) {
    return call.has(operand) ? call.in(operand) : Array<T>();
  };
  const auto visible = [](const Call<T>& call) { return call.has("visible") ? call.index("visible") : Index(); };
  table["indexer_loss"] = [=](const Call<T>& call) {
    IndexerLoss<T> result =
        indexer_loss(call.in("scores"), call.in("attention"), visible(call), call.real("coefficient"), rows(call));
    return Results<T>{{"loss", std::move(result.loss)}, {"row_loss", std::move(result.row_loss)}};
  };
  table["indexer_loss.backward"] = [=](const Call<T>& call) {
    return Results<T>{{"d_scores", indexer_loss_backward(call.in("scores"), call.in("attention"), visible(call),
                                                         call.real("coefficient"), rows(call), optional(call, "d_loss"),
                                                         optional(call, "d_row_loss"))}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                              \
  template IndexerLoss<T> indexer_loss(const Array<T>&, const Array<T>&, const Index&, double,            \
                                       std::optional<std::int64_t>);                                      \
  template Array<T> indexer_loss_backward(const Array<T>&, const Array<T>&, const Index&, double,         \
                                          std::optional<std::int64_t>, const Array<T>&, const Array<T>&); \
  template void add_indexer_loss_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
