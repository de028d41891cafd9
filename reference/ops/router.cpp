#include "reference/ops/router.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "reference/decide.h"
#include "reference/linear_algebra.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

template <class T>
Array<Ball> to_balls(const Array<T>& x) {
  Array<Ball> result(x.shape);
  for (std::int64_t i = 0; i < x.size(); ++i) result[i] = to_ball(x[i]);
  return result;
}

/// Choice scores sigmoid(x . weight) + bias at context().bits.
class ChoiceScores {
 public:
  template <class T>
  ChoiceScores(const Array<T>& x, const Array<T>& weight, const Array<T>& bias)
      : x_(to_balls(x)), weight_(to_balls(weight)), bias_(to_balls(bias)), bits_(context().bits) {
    logits_ = matmul_nt(x_, weight_);
  }

  Ball operator()(std::int64_t t, std::int64_t expert) const {
    const std::int64_t width = weight_.dim(1);
    const Ball logit = context().bits == bits_ ? logits_.at(t, expert)
                                               : dot(x_.row(t, width), 1, weight_.row(expert, width), 1, width);
    return bias_.size() ? sigmoid(logit) + bias_[expert] : sigmoid(logit);
  }

 private:
  Array<Ball> x_, weight_, bias_, logits_;
  int bits_;
};

/// The sum of the two largest values (of one, if there is only one), enclosed whatever their order is.
Ball sum_of_two_largest(const std::vector<Ball>& values) {
  const auto bits = static_cast<slong>(context().bits);
  Ball first = values.front(), second(-std::numeric_limits<double>::infinity());
  for (std::size_t i = 1; i < values.size(); ++i) {
    Ball loser;
    arb_min(loser.data(), first.data(), values[i].data(), bits);
    arb_max(second.data(), second.data(), loser.data(), bits);
    arb_max(first.data(), first.data(), values[i].data(), bits);
  }
  return values.size() == 1 ? first : first + second;
}

void check_rule(const RouterRule& rule, std::int64_t experts) {
  if (rule.n_group < 1 || experts % rule.n_group != 0)
    throw InputError("n_group", std::to_string(rule.n_group), "a divisor of " + std::to_string(experts) + " experts");
  if (rule.topk_group < 1 || rule.topk_group > rule.n_group)
    throw InputError("topk_group", std::to_string(rule.topk_group), "1 to n_group, " + std::to_string(rule.n_group));
  const std::int64_t allowed = experts / rule.n_group * rule.topk_group;
  if (rule.topk < 1 || rule.topk > allowed)
    throw InputError("topk", std::to_string(rule.topk),
                     "1 to the number of allowed experts, " + std::to_string(allowed));
}

}  // namespace

template <class T>
Routing<T> route(const Array<T>& x, const Array<T>& weight, const Array<T>& bias, const RouterRule& rule) {
  const std::int64_t tokens = x.dim(0), experts = weight.dim(0),
                     group_size = experts / std::max<std::int64_t>(rule.n_group, 1);
  check_rule(rule, experts);
  constexpr bool exact_operands = !std::is_same_v<T, Ball>;
  const ChoiceScores choice(x, weight, bias);
  Routing<T> result;
  result.logits = matmul_nt(x, weight);
  result.experts = Index({tokens, rule.topk});
  result.margin.resize(static_cast<std::size_t>(tokens));
  result.group_margin.resize(static_cast<std::size_t>(tokens));
  result.tied.resize(static_cast<std::size_t>(tokens));
  result.group_tied.resize(static_cast<std::size_t>(tokens));
  parallel_for(tokens, [&](std::int64_t t) {
    const auto row = static_cast<std::size_t>(t);
    const auto group_score = [&](std::int64_t group) {
      std::vector<Ball> scores;
      for (std::int64_t e = 0; e < group_size; ++e) scores.push_back(choice(t, group * group_size + e));
      return sum_of_two_largest(scores);
    };
    std::vector<std::int64_t> groups(static_cast<std::size_t>(rule.n_group));
    std::iota(groups.begin(), groups.end(), 0);
    result.group_margin[row] = std::numeric_limits<double>::infinity();
    if (rule.topk_group < rule.n_group) {
      TopK best = top_k(groups, rule.topk_group, group_score, exact_operands);
      groups = std::move(best.winners);
      std::sort(groups.begin(), groups.end());
      result.group_margin[row] = best.margin;
      result.group_tied[row] = std::move(best.tied);
    }
    std::vector<std::int64_t> allowed;
    for (const std::int64_t group : groups)
      for (std::int64_t e = 0; e < group_size; ++e) allowed.push_back(group * group_size + e);
    TopK best = top_k(
        allowed, rule.topk, [&](std::int64_t e) { return choice(t, e); }, exact_operands);
    std::copy(best.winners.begin(), best.winners.end(), result.experts.row(t, rule.topk));
    result.margin[row] = best.margin;
    result.tied[row] = std::move(best.tied);
  });
  result.weights = route_weights(result.logits, result.experts, rule);
  return result;
}

template <class T>
Array<T> route_weights(const Array<T>& logits, const Index& experts, const RouterRule& rule) {
  const std::int64_t count = logits.dim(1), k = experts.dim(1);
  Array<T> weights(experts.shape);
  const T scale = constant<T>(rule.scale);
  const std::vector<T> ones(static_cast<std::size_t>(k), T(1.0));
  parallel_for(experts.dim(0), [&](std::int64_t t) {
    std::vector<T> scores;
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t expert = experts.at(t, i);
      if (expert < 0 || expert >= count)
        throw InputError("experts", std::to_string(expert) + " in row " + std::to_string(t),
                         "0 to " + std::to_string(count - 1));
      scores.push_back(sigmoid(logits.at(t, expert)));
    }
    const T factor =
        rule.norm_topk_prob ? T(scale / (dot(scores.data(), 1, ones.data(), 1, k) + constant<T>(rule.sum_eps))) : scale;
    for (std::int64_t i = 0; i < k; ++i) weights.at(t, i) = scores[static_cast<std::size_t>(i)] * factor;
  });
  return weights;
}

namespace {

/// sum_i weights[i] values[i], every product and partial sum at its rounding point.
template <class T>
T weighted_sum(const T* weights, const T* values, std::int64_t step, std::int64_t k) {
  constexpr Point kProduct = point("combine/product"), kPartial = point("combine/partial_sum");
  if (!rounds_at<T>(kProduct) && !rounds_at<T>(kPartial)) return dot(weights, 1, values, step, k);
  T sum(0.0);
  for (std::int64_t i = 0; i < k; ++i)
    sum = round_at(kPartial, T(sum + round_at(kProduct, T(weights[i] * values[i * step]))));
  return sum;
}

}  // namespace

template <class T>
Array<T> combine(const Array<T>& expert_out, const Array<T>& weights, const Array<T>& shared) {
  const std::int64_t k = expert_out.dim(1), channels = expert_out.dim(2);
  Array<T> y({expert_out.dim(0), channels});
  parallel_for(expert_out.dim(0), [&](std::int64_t t) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const T routed = weighted_sum(weights.row(t, k), expert_out.row(t * k, channels) + c, channels, k);
      y.at(t, c) = round_at(point("combine/y"), shared.size() ? T(routed + shared.at(t, c)) : routed);
    }
  });
  return y;
}

template <class T>
void add_router_ops(OpTable<T>& table) {
  table["router"] = [](const Call<T>& call) {
    const RouterRule rule{call.integer("topk"),        call.integer("n_group"), call.integer("topk_group"),
                          call.flag("norm_topk_prob"), call.real("scale"),      call.real("sum_eps")};
    Routing<T> routing = route(call.in("x"), call.in("weight"), call.has("bias") ? call.in("bias") : Array<T>(), rule);
    const auto as_array = [](const std::vector<double>& values) {
      return Array<T>({static_cast<std::int64_t>(values.size())}, std::vector<T>(values.begin(), values.end()));
    };
    return Results<T>{{"logits", std::move(routing.logits)},
                      {"experts", std::move(routing.experts)},
                      {"weights", std::move(routing.weights)},
                      {"margin", as_array(routing.margin)},
                      {"group_margin", as_array(routing.group_margin)}};
  };
  table["combine"] = [](const Call<T>& call) {
    return Results<T>{
        {"y", combine(call.in("expert_out"), call.in("weights"), call.has("shared") ? call.in("shared") : Array<T>())}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                       \
  template Routing<T> route(const Array<T>&, const Array<T>&, const Array<T>&, const RouterRule&); \
  template Array<T> route_weights(const Array<T>&, const Index&, const RouterRule&);               \
  template Array<T> combine(const Array<T>&, const Array<T>&, const Array<T>&);                    \
  template void add_router_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
