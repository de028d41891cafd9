// The router and the sum over experts. Source: shared/spec/model.md 8.2, 9.
#pragma once

#include <vector>

#include "reference/call.h"

namespace assay::reference {

struct RouterRule {
  std::int64_t topk = 8;
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  bool norm_topk_prob = true;
  double scale = 1.0;
  double sum_eps = 1e-20;
};

template <class T>
struct Routing {
  Array<T> logits;                   ///< [T, E]
  Index experts;                     ///< [T, topk] by descending choice score, equal ones lowest index first
  Array<T> weights;                  ///< [T, topk]
  std::vector<double> margin;        ///< lowest chosen minus highest rejected choice score among the allowed groups
  std::vector<double> group_margin;  ///< the same for the scores of the groups; infinity if all groups are allowed
  std::vector<std::vector<std::int64_t>> tied;        ///< experts that are equal at the threshold
  std::vector<std::vector<std::int64_t>> group_tied;  ///< groups that are equal at the threshold
};

/// logits = x weight^T, s = sigmoid(logits), choice score = s + bias. With groups, a group's score is the sum of its
/// two best choice scores and experts outside the topk_group best groups are never chosen, whatever their scores. x [T,
/// C], weight [E, C], bias [E] or empty. Decisions are certified on balls of the operands with rising precision; with T
/// = Ball they may throw Undecided. Throws InputError for a topk above the number of allowed experts and for groups
/// that do not divide E.
template <class T>
Routing<T> route(const Array<T>& x, const Array<T>& weight, const Array<T>& bias, const RouterRule& rule);

/// w[t, k] = scale s_k / (sum_k s_k + sum_eps), or scale s_k if norm_topk_prob is off, with s = sigmoid of the logits
/// of the given experts: the bias never enters. Throws InputError for an expert outside [0, E).
template <class T>
Array<T> route_weights(const Array<T>& logits, const Index& experts, const RouterRule& rule);

/// y[t] = sum_k weights[t, k] expert_out[t, k] + shared[t], rounded once: expert_out [T, k, C], weights [T, k], shared
/// [T, C] or empty -> [T, C].
template <class T>
Array<T> combine(const Array<T>& expert_out, const Array<T>& weights, const Array<T>& shared);

template <class T>
void add_router_ops(OpTable<T>& table);

}  // namespace assay::reference
