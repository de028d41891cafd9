#include "reference/ops/router_backward.h"

#include <string>

#include "reference/linear_algebra.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

template <class T>
Array<T> transposed(const Array<T>& x) {
  Array<T> y({x.dim(1), x.dim(0)});
  for (std::int64_t i = 0; i < x.dim(0); ++i)
    for (std::int64_t j = 0; j < x.dim(1); ++j) y.at(j, i) = x.at(i, j);
  return y;
}

}  // namespace

template <class T>
Array<T> route_weights_backward(const Array<T>& logits, const Index& experts, const RouterRule& rule,
                                const Array<T>& d_weights, const Array<T>& d_logits_direct) {
  const std::int64_t count = logits.dim(1), k = experts.dim(1);
  Array<T> d_logits = d_logits_direct.size() ? d_logits_direct : Array<T>(logits.shape);
  if (d_weights.size() == 0) return d_logits;
  const T scale = constant<T>(rule.scale);
  const T one(1.0);
  parallel_for(experts.dim(0), [&](std::int64_t t) {
    std::vector<T> s;
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t expert = experts.at(t, i);
      if (expert < 0 || expert >= count)
        throw InputError("experts", std::to_string(expert) + " in row " + std::to_string(t),
                         "0 to " + std::to_string(count - 1));
      s.push_back(sigmoid(logits.at(t, expert)));
    }
    const T* dw = d_weights.row(t, k);
    T total(1.0), shared_part(0.0);
    if (rule.norm_topk_prob) {
      total = dot(s.data(), 1, &one, 0, k) + constant<T>(rule.sum_eps);
      shared_part = scale * dot(dw, 1, s.data(), 1, k) / total;
    }
    for (std::int64_t i = 0; i < k; ++i) {
      const T& score = s[static_cast<std::size_t>(i)];
      T ds = scale * dw[i];
      if (rule.norm_topk_prob) ds = (ds - shared_part) / total;
      T& d = d_logits.at(t, experts.at(t, i));
      const T dz = ds * (score * (one - score));
      d = d_logits_direct.size() ? T(d + dz) : dz;
    }
  });
  return d_logits;
}

template <class T>
RouterGradient<T> router_logits_backward(const Array<T>& x, const Array<T>& weight, const Array<T>& d_logits) {
  RouterGradient<T> gradient{matmul_nt(d_logits, transposed(weight)), matmul_nt(transposed(d_logits), transposed(x))};
  for (T& value : gradient.d_x.data) value = round_at(point("router.backward/d_x"), value);
  return gradient;
}

template <class T>
CombineGradient<T> combine_backward(const Array<T>& expert_out, const Array<T>& weights, bool has_shared,
                                    const Array<T>& dy) {
  const std::int64_t tokens = expert_out.dim(0), k = expert_out.dim(1), channels = expert_out.dim(2);
  CombineGradient<T> gradient{Array<T>(expert_out.shape), Array<T>(weights.shape), Array<T>()};
  if (has_shared) gradient.d_shared = dy.size() ? dy : Array<T>({tokens, channels});
  if (dy.size() == 0) return gradient;
  parallel_for(tokens, [&](std::int64_t t) {
    for (std::int64_t i = 0; i < k; ++i) {
      for (std::int64_t c = 0; c < channels; ++c)
        gradient.d_expert_out.at(t, i, c) = round_at(point("combine.backward/d_expert_out"), weights.at(t, i) * dy.at(t, c));
      gradient.d_weights.at(t, i) = dot(dy.row(t, channels), 1, expert_out.row(t * k + i, channels), 1, channels);
    }
  });
  return gradient;
}

template <class T>
void add_router_backward_ops(OpTable<T>& table) {
  const auto optional = [](const Call<T>& call, const std::string& operand) {
    return call.has(operand) ? call.in(operand) : Array<T>();
  };
  table["router.backward"] = [optional](const Call<T>& call) {
    const RouterRule rule{call.integer("topk"),        call.integer("n_group"), call.integer("topk_group"),
                          call.flag("norm_topk_prob"), call.real("scale"),      call.real("sum_eps")};
    const Array<T> x = call.in("x"), weight = call.in("weight");
    const Routing<T> routing = route(x, weight, optional(call, "bias"), rule);
    RouterGradient<T> g =
        router_logits_backward(x, weight,
                               route_weights_backward(routing.logits, routing.experts, rule,
                                                      optional(call, "d_weights"), optional(call, "d_logits")));
    return Results<T>{{"d_x", std::move(g.d_x)}, {"d_weight", std::move(g.d_weight)}};
  };
  table["combine.backward"] = [optional](const Call<T>& call) {
    CombineGradient<T> g =
        combine_backward(call.in("expert_out"), call.in("weights"), call.has("shared"), optional(call, "d_y"));
    Results<T> results{{"d_expert_out", std::move(g.d_expert_out)}, {"d_weights", std::move(g.d_weights)}};
    if (call.has("shared")) results["d_shared"] = std::move(g.d_shared);
    return results;
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                  \
  template Array<T> route_weights_backward(const Array<T>&, const Index&, const RouterRule&, const Array<T>&, \
                                           const Array<T>&);                                                  \
  template RouterGradient<T> router_logits_backward(const Array<T>&, const Array<T>&, const Array<T>&);       \
  template CombineGradient<T> combine_backward(const Array<T>&, const Array<T>&, bool, const Array<T>&);      \
  template void add_router_backward_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
