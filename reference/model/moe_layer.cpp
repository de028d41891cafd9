#include "reference/model/layers.h"
#include "reference/ops/ffn.h"
#include "reference/ops/linear.h"
#include "reference/ops/router.h"

namespace assay::reference {
namespace {

constexpr double kRouterSumEps = 1e-20;  // model.md 14

/// What the choice of experts compares: sigmoid(logit) + bias.
template <class T>
Array<T> choice_scores(const Array<T>& logits, const Array<T>& bias) {
  Array<T> scores(logits.shape);
  for (std::int64_t i = 0; i < logits.size(); ++i) scores[i] = sigmoid(logits[i]) + bias[i % bias.size()];
  return scores;
}

}  // namespace

template <class T>
Array<T> swiglu_mlp(const Weights& mlp, const Array<T>& x, double limit) {
  const auto projected = [&](const Array<T>& in, const std::string& name) {
    const Array<T> bias = mlp.has(name + ".bias") ? mlp.get<T>(name + ".bias") : Array<T>();
    return linear(in, mlp.get<T>(name + ".weight"), bias);
  };
  return projected(swiglu(projected(x, "gate_proj"), projected(x, "up_proj"), std::optional<double>(limit)),
                   "down_proj");
}

template <class T>
Array<T> moe_layer(const Pass<T>& pass, const Weights& mlp, const Array<T>& x, const std::string& path,
                   std::vector<Array<T>>* router_logits) {
  const ModelConfig& config = pass.config;
  const std::int64_t tokens = x.dim(0), width = x.dim(1), picks = config.num_experts_per_tok;
  const Array<T> bias = mlp.get<T>("gate.e_score_correction_bias");
  const RouterRule rule{.topk = picks,
                        .n_group = config.n_group,
                        .topk_group = config.topk_group,
                        .norm_topk_prob = config.norm_topk_prob,
                        .scale = config.routed_scaling_factor,
                        .sum_eps = kRouterSumEps};
  Routing<T> routing = route(x, mlp.get<T>("gate.weight"), bias, rule);
  routing.logits = pass.stage(path + "router.logits", std::move(routing.logits));
  Decision<T> decision;
  decision.chosen = routing.experts;
  decision.margin = routing.margin;
  decision.tied = routing.tied;
  decision.scores = choice_scores(routing.logits, bias);
  pass.observer.decision(path + "router.experts", decision);
  const Index& experts = decision.chosen;
  const Array<T> weights = pass.stage(path + "router.weights", route_weights(routing.logits, experts, rule));
  if (router_logits) router_logits->push_back(routing.logits);

  Array<T> expert_out({tokens, picks, width});
  for (std::int64_t e = 0; e < config.n_routed_experts; ++e) {
    std::vector<std::int64_t> slots;  // flattened [token, pick] that chose this expert
    for (std::int64_t s = 0; s < experts.size(); ++s)
      if (experts[s] == e) slots.push_back(s);
    if (slots.empty()) continue;
    Array<T> in({static_cast<std::int64_t>(slots.size()), width});
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const T* token = x.row(slots[i] / picks, width);
      std::copy(token, token + width, in.row(static_cast<std::int64_t>(i), width));
    }
    const Array<T> out = swiglu_mlp(mlp.below("experts." + std::to_string(e) + "."), in, config.swiglu_limit);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const T* row = out.row(static_cast<std::int64_t>(i), width);
      std::copy(row, row + width, expert_out.row(slots[i], width));
    }
  }
  return combine(expert_out, weights, swiglu_mlp(mlp.below("shared_experts."), x, config.swiglu_limit));
}

#define ASSAY_INSTANTIATE(T)                                                                       \
  template Array<T> swiglu_mlp(const Weights&, const Array<T>&, double);                           \
  template Array<T> moe_layer(const Pass<T>&, const Weights&, const Array<T>&, const std::string&, \
                              std::vector<Array<T>>*);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
