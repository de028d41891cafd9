// The chunked form backwards (megatron.md 2.5). Within a chunk of n tokens, G the inclusive sum of g, q already scaled
// (or, where a contract rounds q exp G, its products and dP scaled: megatron.md 2.4),
// Gamma_ij = exp(G_i - G_j), h the state before the chunk and D the gradient of the state after it, step 0 rebuilds
//   P = tril(q k Gamma), A = stril(beta k k Gamma), M = (I + A)^-1, W = M (beta k exp G), Vn = M (beta v) - W h
// and the steps are
//   1  dP = tril(do Vn^T)
//   2  dVn = P^T do + (k exp(G_last - G)) D,    D <- exp(G_last) D + (q exp G)^T do - W^T dVn
//   3  dW = -dVn h^T, omega = M^T dW, upsilon = M^T dVn,    dA = -stril(M^T stril((dVn v^T + dW (k exp G)^T) beta) M^T)
//   4  rho_i = sum_j dP_ij k_j Gamma_ij, kappa_i = sum_j dA_ij k_j Gamma_ij,
//      tau_j = sum_i (dP_ij q_i + dA_ij beta_i k_i) Gamma_ij
//   5  d_g = reverse cumulative sum of the gradient of G.
// Gamma is formed for j < i only, where its exponent is not positive. Some terms are added to the gradient of G and
// taken from it again (the diagonal of dP; the last row of the decay to the chunk's end): they cancel identically and
// are left out, so that a gradient that is exactly zero is zero. Bound and Sampled, which speak for implementations,
// keep what their rounding leaves.
#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>

#include "reference/linear_algebra.h"
#include "reference/ops/cotangent.h"
#include "reference/ops/delta_rule_backward.h"
#include "reference/ops/unit_lower.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

template <class T>
Array<T> transposed(const Array<T>& x) {
  Array<T> y({x.dim(1), x.dim(0)});
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    for (std::int64_t j = 0; j < x.dim(1); ++j) y.at(j, i) = x.at(i, j);
  }
  return y;
}

/// a b.
template <class T>
Array<T> multiply(const Array<T>& a, const Array<T>& b) {
  return matmul_nt(a, transposed(b));
}

/// a^T b.
template <class T>
Array<T> multiply_transposed(const Array<T>& a, const Array<T>& b) {
  return matmul_nt(transposed(a), transposed(b));
}

/// Element by element, of two arrays of one shape.
template <class T>
Array<T> combine(const Array<T>& a, const Array<T>& b, T (*op)(const T&, const T&)) {
  Array<T> y(a.shape);
  for (std::int64_t i = 0; i < a.size(); ++i) y[i] = op(a[i], b[i]);
  return y;
}
template <class T>
T plus(const T& a, const T& b) {
  return a + b;
}
template <class T>
T minus(const T& a, const T& b) {
  return a - b;
}
template <class T>
T times(const T& a, const T& b) {
  return a * b;
}

/// Row i of x times factors[i].
template <class T>
Array<T> scaled_rows(const std::vector<T>& factors, const Array<T>& x) {
  Array<T> y(x.shape);
  for (std::int64_t i = 0; i < x.size(); ++i) y[i] = factors[static_cast<std::size_t>(i / x.dim(1))] * x[i];
  return y;
}

template <class T>
Array<T> rounded_at(Point where, Array<T> x) {
  for (T& value : x.data) value = round_at(where, value);
  return x;
}

/// One value head of one chunk; matrices are [tokens of the chunk, width].
template <class T>
struct Chunk {
  std::int64_t n, K, V;
  Array<T> q, k, v, d_o;
  Array<T> decay, rest;  ///< exp(G), exp(G_last - G)
  Array<T> gamma;        ///< [n, n, K], for j < i
  std::vector<T> beta, last_decay;
  std::optional<T> scale;  ///< of the products of q; absent: q contains it
  Array<T> P, M, W, U, k_decayed;

  Chunk(std::int64_t length, std::int64_t key_dim, std::int64_t value_dim)
      : n(length), K(key_dim), V(value_dim), q({n, K}), k({n, K}), v({n, V}), d_o({n, V}) {}

  T scaled(const T& product) const { return scale ? T(*scale * product) : product; }
  Array<T> scaled(Array<T> products) const {
    if (scale)
      for (T& x : products.data) x = *scale * x;
    return products;
  }

  /// Step 0, as far as it does not depend on the state; G [n, K].
  void prepare(const Array<T>& G) {
    decay = rest = Array<T>({n, K});
    gamma = Array<T>({n, n, K});
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t d = 0; d < K; ++d) {
        decay.at(i, d) = exp(G.at(i, d));
        for (std::int64_t j = 0; j < i; ++j) gamma.at(i, j, d) = exp(T(G.at(i, d) - G.at(j, d)));
        rest.at(i, d) = i + 1 == n ? T(1.0) : T(exp(T(G.at(n - 1, d) - G.at(i, d))));
      }
    }
    last_decay.assign(decay.row(n - 1, K), decay.row(n - 1, K) + K);
    P = Array<T>({n, n});
    Array<T> A({n, n});
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < i; ++j) {
        std::vector<T> key;
        for (std::int64_t d = 0; d < K; ++d) key.push_back(k.at(j, d) * gamma.at(i, j, d));
        P.at(i, j) = scaled(dot(q.row(i, K), 1, key.data(), 1, K));
        A.at(i, j) = beta[static_cast<std::size_t>(i)] * dot(k.row(i, K), 1, key.data(), 1, K);
      }
      P.at(i, i) = scaled(dot(q.row(i, K), 1, k.row(i, K), 1, K));
    }
    P = rounded_at(point("delta_rule_chunked/scores"), std::move(P));
    M = rounded_at(point("delta_rule_chunked/inverse"), inverse_of_unit_lower(A));
    k_decayed = combine(k, decay, times<T>);
    const Array<T> beta_k = rounded_at(point("delta_rule_chunked/beta_k"), scaled_rows(beta, k_decayed));
    const Array<T> beta_v = rounded_at(point("delta_rule_chunked/beta_v"), scaled_rows(beta, v));
    W = rounded_at(point("delta_rule_chunked/w"), multiply(M, beta_k));
    U = rounded_at(point("delta_rule_chunked/u"), multiply(M, beta_v));
  }
  /// h, the state as products read it.
  static Array<T> seen(const Array<T>& state) { return rounded_at(point("delta_rule_chunked/state"), state); }
  Array<T> fresh_values(const Array<T>& h) const {
    return rounded_at(point("delta_rule_chunked/v_new"), combine(U, multiply(W, h), minus<T>));
  }
  Array<T> keys_at_end() const {
    return rounded_at(point("delta_rule_chunked/k_end"), combine(k, rest, times<T>));
  }
  /// The state [K, V] after the chunk.
  Array<T> next(const Array<T>& state) const {
    return combine(scaled_rows(last_decay, state), multiply_transposed(keys_at_end(), fresh_values(seen(state))), plus<T>);
  }
};

template <class T>
inline constexpr bool kModelsRounding = std::is_same_v<T, Bound> || std::is_same_v<T, Sampled>;

/// x - y of two terms that are equal in exact arithmetic.
template <class T>
T cancelling(const T& x, const T& y) {
  if constexpr (std::is_same_v<T, Bound>) return {0.0, (x - y).e};
  if constexpr (std::is_same_v<T, Sampled>) return x - y;
  return T(0.0);
}

template <class T>
struct ChunkGradients {
  Array<T> q, k, v, g, beta;  ///< of the scaled q; beta [n, 1]
};

template <class T>
struct Intra {
  Array<T> rho, kappa, tau;  ///< of step 4, rho and tau without the diagonal
};

template <class T>
T operand(const T& x) {
  return round_at(point("delta_rule_chunked.backward/within"), x);
}

/// dP and dA as the products read them.
template <class T>
Intra<T> within(const Chunk<T>& c, const Array<T>& dP, const Array<T>& dA) {
  const std::int64_t n = c.n, K = c.K;
  Intra<T> s{Array<T>({n, K}), Array<T>({n, K}), Array<T>({n, K})};
  const Array<T> beta_k = scaled_rows(c.beta, c.k);
  for (std::int64_t d = 0; d < K; ++d) {
    for (std::int64_t i = 0; i < n; ++i) {
      std::vector<T> key;
      for (std::int64_t j = 0; j < i; ++j) key.push_back(operand<T>(c.k.at(j, d) * c.gamma.at(i, j, d)));
      s.rho.at(i, d) = dot(dP.row(i, n), 1, key.data(), 1, i);
      s.kappa.at(i, d) = dot(dA.row(i, n), 1, key.data(), 1, i);
    }
    for (std::int64_t j = 0; j < n; ++j) {
      std::vector<T> slope, value;
      for (std::int64_t i = j + 1; i < n; ++i) {
        slope.push_back(dP.at(i, j));
        value.push_back(operand<T>(c.q.at(i, d) * c.gamma.at(i, j, d)));
        slope.push_back(dA.at(i, j));
        value.push_back(operand<T>(beta_k.at(i, d) * c.gamma.at(i, j, d)));
      }
      s.tau.at(j, d) = dot(slope.data(), 1, value.data(), 1, static_cast<std::int64_t>(slope.size()));
    }
  }
  return s;
}

/// Steps 1 to 5. `state` [K, V] before the chunk; D [K, V] after it on entry, before it on return.
template <class T>
ChunkGradients<T> run_back(const Chunk<T>& c, const Array<T>& state, Array<T>& D) {
  const std::int64_t n = c.n, K = c.K, V = c.V;
  const Array<T> h = c.seen(state), fresh = c.fresh_values(h), keys = c.keys_at_end();
  const Array<T> d_h = rounded_at(point("delta_rule_chunked.backward/d_state"), D);
  // Of dP the lower triangle is meant.
  const Array<T> dP =
      rounded_at(point("delta_rule_chunked.backward/within"), c.scaled(matmul_nt(c.d_o, fresh)));
  const Array<T> d_local =
      rounded_at(point("delta_rule_chunked.backward/d_v_local"), multiply_transposed(c.P, c.d_o));
  const Array<T> d_fresh = rounded_at(point("delta_rule_chunked.backward/d_v_new"),
                                      combine(d_local, multiply(keys, d_h), plus<T>));

  const Array<T> dq_state = c.scaled(combine(c.decay, matmul_nt(c.d_o, h), times<T>));
  const Array<T> dk_end = combine(c.rest, matmul_nt(fresh, d_h), times<T>);
  Array<T> dW = rounded_at(point("delta_rule_chunked.backward/d_w"), matmul_nt(d_fresh, h));
  for (T& x : dW.data) x = -x;
  const Array<T> omega = multiply_transposed(c.M, dW), upsilon = multiply_transposed(c.M, d_fresh);
  const Array<T> key = rounded_at(point("delta_rule_chunked.backward/k_decayed"), c.k_decayed);
  Array<T> dM = combine(matmul_nt(d_fresh, c.v), matmul_nt(dW, key), plus<T>);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      dM.at(i, j) = j < i ? round_at(point("delta_rule_chunked.backward/d_inverse"),
                                     T(c.beta[static_cast<std::size_t>(j)] * dM.at(i, j)))
                          : T(0.0);
    }
  }
  // The stored factor is dM M^T where it is stored. Of dA the strict lower triangle is meant.
  constexpr Point kProduct = point("delta_rule_chunked.backward/d_inverse_product");
  Array<T> dA = rounds_at<T>(kProduct) ? multiply_transposed(c.M, rounded_at(kProduct, matmul_nt(dM, c.M)))
                                       : matmul_nt(multiply_transposed(c.M, dM), c.M);
  for (T& x : dA.data) x = -operand(x);

  const Intra<T> s = within(c, dP, dA);
  ChunkGradients<T> d{Array<T>({n, K}), Array<T>({n, K}), scaled_rows(c.beta, upsilon), Array<T>({n, K}),
                      Array<T>({n, 1})};
  for (std::int64_t i = 0; i < n; ++i) {
    const T& b = c.beta[static_cast<std::size_t>(i)];
    d.beta[i] = dot(upsilon.row(i, V), 1, c.v.row(i, V), 1, V) + dot(omega.row(i, K), 1, c.k_decayed.row(i, K), 1, K) +
                dot(s.kappa.row(i, K), 1, c.k.row(i, K), 1, K);
    for (std::int64_t e = 0; e < K; ++e) {
      const T before = dq_state.at(i, e) + s.rho.at(i, e);
      const T as_reader = b * (c.decay.at(i, e) * omega.at(i, e) + s.kappa.at(i, e));
      const T q_share = dP.at(i, i) * operand(c.k.at(i, e)), k_share = dP.at(i, i) * operand(c.q.at(i, e));
      d.q.at(i, e) = before + q_share;
      d.k.at(i, e) = dk_end.at(i, e) + as_reader + s.tau.at(i, e) + k_share;
      T dG = c.q.at(i, e) * before + c.k.at(i, e) * (as_reader - s.tau.at(i, e));
      dG += cancelling<T>(c.q.at(i, e) * q_share, c.k.at(i, e) * k_share);
      if (i + 1 < n || kModelsRounding<T>) dG -= c.k.at(i, e) * dk_end.at(i, e);
      if (i + 1 == n) {
        dG += dot(c.k.data.data() + e, K, dk_end.data.data() + e, K, kModelsRounding<T> ? n : n - 1);
        dG += c.last_decay[static_cast<std::size_t>(e)] * dot(h.row(e, V), 1, d_h.row(e, V), 1, V);
      }
      d.g.at(i, e) = dG;
    }
  }
  for (std::int64_t i = n - 1; i > 0; --i) {
    for (std::int64_t e = 0; e < K; ++e) d.g.at(i - 1, e) += d.g.at(i, e);
  }
  const Array<T> query = rounded_at(point("delta_rule_chunked/q_decayed"), combine(c.q, c.decay, times<T>));
  const Array<T> read = c.scaled(multiply_transposed(query, c.d_o));
  D = combine(combine(scaled_rows(c.last_decay, D), read, plus<T>), multiply_transposed(c.W, d_fresh), minus<T>);
  return d;
}

}  // namespace

template <class T>
DeltaRuleGradients<T> delta_rule_chunked_backward(const Array<T>& q, const Array<T>& k, const Array<T>& v,
                                                  const Array<T>& g, const Array<T>& beta,
                                                  const Array<T>& initial_state, const Index& cu_seqlens,
                                                  std::optional<double> scale, std::int64_t chunk, const Array<T>& d_o,
                                                  const Array<T>& d_final_state, bool store_qk) {
  if (chunk < 1) throw InputError("delta_rule_chunked chunk", std::to_string(chunk), "at least 1");
  const DeltaRuleSizes sizes = delta_rule_sizes(q.shape, v.shape, initial_state.shape, cu_seqlens);
  const std::int64_t K = sizes.key_dim, V = sizes.value_dim, Hv = sizes.value_heads;
  const auto count = static_cast<std::int64_t>(sizes.documents.size());
  const T factor = query_scale<T>(scale, K);
  const bool scale_products = rounds_at<T>(point("delta_rule_chunked/q_decayed"));
  const Array<T> d_out = cotangent_or_zero(d_o, v.shape, "delta_rule_chunked.backward d_o");
  const Array<T> d_last =
      cotangent_or_zero(d_final_state, {count, Hv, K, V}, "delta_rule_chunked.backward d_final_state");
  Array<T> d_q(g.shape), d_k(g.shape);  // per value head
  DeltaRuleGradients<T> result{
      {}, {}, Array<T>(v.shape), Array<T>(g.shape), Array<T>(beta.shape), Array<T>(initial_state.shape)};

  parallel_for(count * Hv, [&](std::int64_t row) {
    const Document& document = sizes.documents[static_cast<std::size_t>(row / Hv)];
    const std::int64_t h = row % Hv, key_head = h / sizes.group;
    const auto chunk_at = [&](std::int64_t begin) {
      Chunk<T> c(std::min(chunk, document.end - begin), K, V);
      Array<T> G({c.n, K});
      if (scale_products) c.scale = factor;
      for (std::int64_t i = 0; i < c.n; ++i) {
        const std::int64_t t = begin + i;
        for (std::int64_t d = 0; d < K; ++d) {
          c.q.at(i, d) = scale_products ? q.at(t, key_head, d) : T(factor * q.at(t, key_head, d));
          c.k.at(i, d) = k.at(t, key_head, d);
          G.at(i, d) = i == 0 ? g.at(t, h, d) : T(G.at(i - 1, d) + g.at(t, h, d));
        }
        std::copy_n(&v.at(t, h, 0), V, c.v.row(i, V));
        std::copy_n(&d_out.at(t, h, 0), V, c.d_o.row(i, V));
        c.beta.push_back(beta.at(t, h));
      }
      c.prepare(G);
      return c;
    };
    std::vector<Array<T>> states;  // before each chunk
    Array<T> state({K, V});
    if (initial_state.size()) std::copy_n(initial_state.row(row, K * V), K * V, state.data.begin());
    for (std::int64_t begin = document.begin; begin < document.end; begin += chunk) {
      states.push_back(state);
      if (begin + chunk < document.end) state = chunk_at(begin).next(state);
    }
    Array<T> D({K, V});
    std::copy_n(d_last.row(row, K * V), K * V, D.data.begin());
    for (auto index = static_cast<std::int64_t>(states.size()) - 1; index >= 0; --index) {
      const std::int64_t begin = document.begin + index * chunk;
      const Chunk<T> c = chunk_at(begin);
      const ChunkGradients<T> d = run_back(c, states[static_cast<std::size_t>(index)], D);
      for (std::int64_t i = 0; i < c.n; ++i) {
        const std::int64_t at = (begin + i) * Hv + h;
        for (std::int64_t e = 0; e < K; ++e)
          d_q[at * K + e] = scale_products ? d.q.at(i, e) : T(factor * d.q.at(i, e));
        std::copy_n(d.k.row(i, K), K, d_k.row(at, K));
        std::copy_n(d.g.row(i, K), K, result.d_g.row(at, K));
        for (std::int64_t e = 0; e < V; ++e)
          result.d_v[at * V + e] = round_at(point("delta_rule_chunked.backward/d_v"), d.v.at(i, e));
        result.d_beta[at] = d.beta[i];
      }
    }
    if (initial_state.size()) std::copy_n(D.data.begin(), K * V, result.d_initial_state.row(row, K * V));
  });
  if (!store_qk) {
    ASSAY_CHECK(sizes.group == 1);
    result.d_q = std::move(d_q);
    result.d_k = std::move(d_k);
    return result;
  }
  result.d_q = sum_over_groups(d_q, sizes.group);
  result.d_k = sum_over_groups(d_k, sizes.group);
  return result;
}

#define ASSAY_INSTANTIATE(T)                                                                                \
  template DeltaRuleGradients<T> delta_rule_chunked_backward(                                               \
      const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&, \
      const Index&, std::optional<double>, std::int64_t, const Array<T>&, const Array<T>&, bool);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
