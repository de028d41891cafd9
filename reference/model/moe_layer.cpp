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
Var<T> swiglu_mlp(const Pass<T>& pass, const Weights& mlp, const Var<T>& x, double limit) {
  const auto projected = [&](const Var<T>& in, const std::string& name) {
    const Var<T> bias = mlp.has(name + ".bias") ? pass.weight(mlp, name + ".bias") : nullptr;
    return Graph<T>::linear(pass.tape, in, pass.weight(mlp, name + ".weight"), bias);
  };
  const Var<T> inner = Graph<T>::swiglu(pass.tape, projected(x, "gate_proj"), projected(x, "up_proj"), limit);
  return projected(inner, "down_proj");
}

template <class T>
Var<T> moe_layer(const Pass<T>& pass, const Weights& mlp, const Var<T>& x, const std::string& path,
                 std::vector<Var<T>>* router_logits) {
  using G = Graph<T>;
  using M = Moves<T>;
  Tape<T>& tape = pass.tape;
  const ModelConfig& config = pass.config;
  const std::int64_t tokens = x->value.dim(0), width = x->value.dim(1), picks = config.num_experts_per_tok;
  const Array<T> bias = mlp.get<T>("gate.e_score_correction_bias");
  const RouterRule rule{.topk = picks,
                        .n_group = config.n_group,
                        .topk_group = config.topk_group,
                        .norm_topk_prob = config.norm_topk_prob,
                        .scale = config.routed_scaling_factor,
                        .sum_eps = kRouterSumEps};
  const Var<T> weight = pass.weight(mlp, "gate.weight");
  const Routing<T> routing = route(x->value, weight->value, bias, rule);
  // The router's product is an F32 product: no rounding to the activation dtype.
  const Var<T> logits = pass.stage(path + "router.logits", G::product(tape, x, weight));
  Decision<T> decision;
  decision.chosen = routing.experts;
  decision.margin = routing.margin;
  decision.tied = routing.tied;
  decision.scores = choice_scores(logits->value, bias);
  pass.observer.decision(path + "router.experts", decision);
  const Index& experts = decision.chosen;
  const Var<T> weights = pass.stage(path + "router.weights", G::route_weights(tape, logits, experts, rule));
  if (router_logits) router_logits->push_back(logits);

  std::vector<Var<T>> parts;
  for (std::int64_t e = 0; e < config.n_routed_experts; ++e) {
    std::vector<std::int64_t> slots, rows;  // flattened [token, pick] that chose this expert, and its tokens
    for (std::int64_t s = 0; s < experts.size(); ++s) {
      if (experts[s] != e) continue;
      slots.push_back(s);
      rows.push_back(s / picks);
    }
    if (slots.empty()) continue;
    const Var<T> out = swiglu_mlp(pass, mlp.below("experts." + std::to_string(e) + "."), M::gathered(tape, x, rows),
                                  config.swiglu_limit);
    parts.push_back(M::placed(tape, out, slots, tokens * picks));
  }
  const Var<T> expert_out = M::reshaped(tape, M::assembled(tape, parts), {tokens, picks, width});
  return G::combine(tape, expert_out, weights, swiglu_mlp(pass, mlp.below("shared_experts."), x, config.swiglu_limit));
}

#define ASSAY_INSTANTIATE(T)                                                         \
  template Var<T> swiglu_mlp(const Pass<T>&, const Weights&, const Var<T>&, double); \
  template Var<T> moe_layer(const Pass<T>&, const Weights&, const Var<T>&, const std::string&, std::vector<Var<T>>*);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
