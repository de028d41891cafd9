// With S' = D S_{t-1}, D = diag(exp g), u = v - S'^T k, S_t = S' + beta k u^T, o_t = scale S_t^T q and R_t the gradient
// of S_t from the tokens after t:
//   P = R_t + scale q do^T       dq = scale S_t do
//   dd = P^T k                   dv = beta dd,  dbeta = <dd, u>,  dk = P (beta u) - S' dv
//   dS' = P - k dv^T             dg_d = sum_e dS'[d, e] S'[d, e]
//   R_{t-1} = D dS'
// Every value column of R obeys an affine recurrence of its own whose linear part D (I - beta k k^T) is the transpose
// of the state's.
//
// ENCLOSURE (Ball). As in delta_rule.cpp, a column of the state or of its adjoint is carried as exact midpoints m and
// one number E with |x - m|_2 <= E, because radii carried per element grow exponentially with the number of tokens. An
// affine map is evaluated on the point m with the operands' balls; the new E is its norm times E plus the norm of the
// radii that arose. The norms: D at most max_d exp g_d; I - beta k k^T, symmetric with eigenvalues 1 and
// 1 - beta |k|^2, at most max(1, |1 - beta |k|^2|); adding scale q do^T, 1. The results are read from the columns: a
// product with a vector x is off by |x|_2 E, an element by E. dq, dk and dg are sums over e of such elements times
// numbers that do not grow, so that E enters each of them once.
//
// PERMITTED ERROR (Bound). The same with m the value and E a bound on |x~ - m|_2 for the column x~ of any
// implementation that evaluates these formulas in the compute format, in any order of the sums. The evaluation on m
// counts every rounding at the intermediates that belong to m; at x~ = m + z the intermediates are larger by those of
// the linear part at z, and a term of it passes n roundings, which add at most gamma_n of the sum of its terms'
// norms: n = 1 for D and for the addition, n = K + 3 (dot, two products, subtraction) for z - beta k (k^T z), where the
// norms sum to (1 + beta |k|^2) E, and n = K + 1 for a read.
#include "reference/ops/delta_rule_backward.h"

#include <algorithm>

#include "reference/ops/cotangent.h"
#include "reference/ops/delta_rule_columns.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// One token of one value head, with the norms of its maps (0 for the scalars without errors).
template <class T>
struct Step {
  std::int64_t K, V;
  const T *q, *k, *v;
  T beta;
  std::vector<T> decay;
  Upper decay_norm, reflection_norm, read_norm;

  Step(std::int64_t key_dim, std::int64_t value_dim, const T* q_row, const T* k_row, const T* v_row, const T* g_row,
       const T& step_size)
      : K(key_dim), V(value_dim), q(q_row), k(k_row), v(v_row), beta(step_size) {
    for (std::int64_t d = 0; d < K; ++d) decay.push_back(exp(g_row[d]));
    if constexpr (kHasErrorNorms<T>) {
      for (const T& a : decay) decay_norm = larger(decay_norm, magnitude(a));
      decay_norm *= Upper(1.0) + gamma_of<T>(1);
      const Upper k_norm = norm_of(k, K), beta_k2 = magnitude(beta) * k_norm * k_norm;
      const T eigenvalue = T(1.0) - beta * dot(k, 1, k, 1, K);
      reflection_norm = larger(Upper(1.0), magnitude(eigenvalue)) + gamma_of<T>(K + 3) * (Upper(1.0) + beta_k2);
      read_norm = k_norm * (Upper(1.0) + gamma_of<T>(K + 1));
    }
  }
  /// x -> D x.
  void apply_decay(Columns<T>& x) const {
    for (std::int64_t e = 0; e < V; ++e) {
      for (std::int64_t d = 0; d < K; ++d) x.column(e)[d] *= decay[static_cast<std::size_t>(d)];
      x.settle(e, decay_norm);
    }
  }
  /// S' -> S_t; returns u.
  std::vector<T> write(Columns<T>& state) const {
    std::vector<T> u;
    for (std::int64_t e = 0; e < V; ++e) {
      T* s = state.column(e);
      const T memory = dot(s, 1, k, 1, K), delta = beta * (v[e] - memory);
      u.push_back(v[e] - state.with_error(memory, e, read_norm));
      for (std::int64_t d = 0; d < K; ++d) s[d] += k[d] * delta;
      state.settle(e, reflection_norm);
    }
    return u;
  }
  /// P -> dS'; returns dd.
  std::vector<T> reflect(Columns<T>& adjoint) const {
    std::vector<T> dd;
    for (std::int64_t e = 0; e < V; ++e) {
      T* p = adjoint.column(e);
      const T product = dot(p, 1, k, 1, K), du = beta * product;
      dd.push_back(adjoint.with_error(product, e, read_norm));
      for (std::int64_t d = 0; d < K; ++d) p[d] -= k[d] * du;
      adjoint.settle(e, reflection_norm);
    }
    return dd;
  }
};

/// Where the gradients of one token and value head go.
template <class T>
struct Slots {
  T *q, *k, *v, *g, *beta;
};

/// One token backwards: `state` is S_{t-1}, `adjoint` R_t on entry and R_{t-1} on return.
template <class T>
void step_back(const Step<T>& step, const T& factor, const T* d_o, Columns<T> state, Columns<T>& adjoint,
               const Slots<T>& out) {
  const std::int64_t K = step.K, V = step.V;
  step.apply_decay(state);
  const Columns<T> decayed = state;
  const std::vector<T> u = step.write(state);
  std::vector<T> delta;
  for (const T& value : u) delta.push_back(step.beta * value);

  std::vector<T> query;
  for (std::int64_t d = 0; d < K; ++d) query.push_back(factor * step.q[d]);
  for (std::int64_t e = 0; e < V; ++e) {
    for (std::int64_t d = 0; d < K; ++d) adjoint.column(e)[d] += query[static_cast<std::size_t>(d)] * d_o[e];
    adjoint.settle(e, Upper(1.0) + gamma_of<T>(1));
  }
  for (std::int64_t d = 0; d < K; ++d) {
    out.q[d] = factor * dot(state.row(d).data(), 1, d_o, 1, V);
    out.k[d] = dot(adjoint.row(d).data(), 1, delta.data(), 1, V);
  }
  const std::vector<T> dd = step.reflect(adjoint);
  *out.beta = dot(dd.data(), 1, u.data(), 1, V);
  std::vector<T> du;
  for (const T& value : dd) du.push_back(step.beta * value);
  for (std::int64_t e = 0; e < V; ++e) out.v[e] = round_at(point("delta_rule.backward/d_v"), du[static_cast<std::size_t>(e)]);
  for (std::int64_t d = 0; d < K; ++d) {
    const std::vector<T> memory = decayed.row(d);
    out.k[d] -= dot(memory.data(), 1, du.data(), 1, V);
    out.g[d] = dot(adjoint.row(d).data(), 1, memory.data(), 1, V);
  }
  step.apply_decay(adjoint);
}

/// States are kept at the first token of each segment and recomputed within it.
constexpr std::int64_t kSegment = 64;

}  // namespace

template <class T>
Array<T> sum_over_groups(const Array<T>& x, std::int64_t group) {
  const std::int64_t tokens = x.dim(0), heads = x.dim(1) / group, width = x.dim(2);
  Array<T> sums({tokens, heads, width});
  parallel_for(tokens * heads, [&](std::int64_t row) {
    for (std::int64_t d = 0; d < width; ++d) {
      T sum = x[row * group * width + d];
      for (std::int64_t member = 1; member < group; ++member) sum += x[(row * group + member) * width + d];
      sums[row * width + d] = round_at(point("delta_rule.backward/d_qk_of_group"), sum);
    }
  });
  return sums;
}

template <class T>
DeltaRuleGradients<T> delta_rule_backward(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Array<T>& g,
                                          const Array<T>& beta, const Array<T>& initial_state, const Index& cu_seqlens,
                                          std::optional<double> scale, const Array<T>& d_o,
                                          const Array<T>& d_final_state) {
  const DeltaRuleSizes sizes = delta_rule_sizes(q.shape, v.shape, initial_state.shape, cu_seqlens);
  const std::int64_t K = sizes.key_dim, V = sizes.value_dim, Hv = sizes.value_heads, H = Hv / sizes.group;
  const auto count = static_cast<std::int64_t>(sizes.documents.size());
  const T factor = query_scale<T>(scale, K);
  const Array<T> d_out = cotangent_or_zero(d_o, v.shape, "delta_rule.backward d_o");
  const Array<T> d_last = cotangent_or_zero(d_final_state, {count, Hv, K, V}, "delta_rule.backward d_final_state");
  Array<T> d_q(g.shape), d_k(g.shape);  // per value head
  DeltaRuleGradients<T> result{
      {}, {}, Array<T>(v.shape), Array<T>(g.shape), Array<T>(beta.shape), Array<T>(initial_state.shape)};

  parallel_for(count * Hv, [&](std::int64_t row) {
    const Document& document = sizes.documents[static_cast<std::size_t>(row / Hv)];
    const std::int64_t h = row % Hv, key_head = h / sizes.group;
    const auto step_at = [&](std::int64_t t) {
      return Step<T>(K, V, q.row(t * H + key_head, K), k.row(t * H + key_head, K), v.row(t * Hv + h, V),
                     g.row(t * Hv + h, K), beta.at(t, h));
    };
    const auto advance = [&](Columns<T>& state, std::int64_t t) {
      const Step<T> step = step_at(t);
      step.apply_decay(state);
      step.write(state);
    };
    std::vector<Columns<T>> first;  // of each segment
    Columns<T> state(K, V, initial_state.size() ? initial_state.row(row, K * V) : nullptr);
    for (std::int64_t t = document.begin; t < document.end; ++t) {
      if ((t - document.begin) % kSegment == 0) first.push_back(state);
      advance(state, t);
    }
    Columns<T> adjoint(K, V, d_last.row(row, K * V));
    for (auto segment = static_cast<std::int64_t>(first.size()) - 1; segment >= 0; --segment) {
      const std::int64_t begin = document.begin + segment * kSegment, end = std::min(begin + kSegment, document.end);
      std::vector<Columns<T>> before{first[static_cast<std::size_t>(segment)]};
      for (std::int64_t t = begin; t + 1 < end; ++t) {
        before.push_back(before.back());
        advance(before.back(), t);
      }
      for (std::int64_t t = end - 1; t >= begin; --t) {
        const std::int64_t at = t * Hv + h;
        step_back(step_at(t), factor, d_out.row(at, V), before[static_cast<std::size_t>(t - begin)], adjoint,
                  {d_q.row(at, K), d_k.row(at, K), result.d_v.row(at, V), result.d_g.row(at, K), &result.d_beta[at]});
      }
    }
    if (initial_state.size() == 0) return;
    for (std::int64_t d = 0; d < K; ++d) {
      for (std::int64_t e = 0; e < V; ++e) result.d_initial_state[(row * K + d) * V + e] = adjoint.element(d, e);
    }
  });
  result.d_q = sum_over_groups(d_q, sizes.group);
  result.d_k = sum_over_groups(d_k, sizes.group);
  return result;
}

#define ASSAY_INSTANTIATE(T)                                                                                          \
  template Array<T> sum_over_groups(const Array<T>&, std::int64_t);                                                   \
  template DeltaRuleGradients<T> delta_rule_backward(const Array<T>&, const Array<T>&, const Array<T>&,               \
                                                     const Array<T>&, const Array<T>&, const Array<T>&, const Index&, \
                                                     std::optional<double>, const Array<T>&, const Array<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
