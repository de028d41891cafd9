#include "reference/ops/kda_backward.h"

#include <algorithm>

#include "reference/ops/cotangent.h"
#include "reference/ops/delta_rule_backward.h"
#include "reference/ops/documents.h"
#include "reference/ops/kda.h"
#include "reference/ops/norm.h"
#include "reference/ops/norm_backward.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// One channel of the convolution over one document: what multiplies the taps at token t is past[t .. t + W - 1].
template <class T>
struct Channel {
  std::vector<T> past;  ///< W-1 values before the document, then its tokens
  std::vector<T> d_sum;

  Channel(const Array<T>& u, const Array<T>& weight, const Array<T>& before, const Document& document, std::int64_t c,
          const Array<T>& dy) {
    const std::int64_t taps = weight.dim(1);
    for (std::int64_t r = 0; r < taps - 1; ++r) past.push_back(before.size() ? before.at(r, c) : T(0.0));
    for (std::int64_t t = document.begin; t < document.end; ++t) past.push_back(u.at(t, c));
    for (std::int64_t t = document.begin; t < document.end; ++t) {
      const T sum = dot(past.data() + (t - document.begin), 1, weight.row(c, taps), 1, taps), s = sigmoid(sum);
      d_sum.push_back(dy.at(t, c) * (s + sum * s * (T(1.0) - s)));
    }
  }
  /// sum_a weight[w - a] d_sum[first + a], the gradient of the value that tap w multiplies at token `first`.
  T gradient(const T* weight, std::int64_t w, std::int64_t first) const {
    const std::int64_t count = std::min<std::int64_t>(w + 1, static_cast<std::int64_t>(d_sum.size()) - first);
    return dot(d_sum.data() + first, 1, weight + w, -1, count);
  }
};

}  // namespace

template <class T>
KdaConvGradients<T> kda_conv_backward(const Array<T>& u, const Array<T>& weight, const Index& cu_seqlens,
                                      const Array<T>& initial, const Array<T>& dy) {
  const std::int64_t tokens = u.dim(0), channels = u.dim(1), taps = weight.dim(1);
  const std::vector<Document> documents = documents_of(cu_seqlens, tokens);
  const Array<T> d = cotangent_or_zero(dy, u.shape, "kda_conv.backward d_y");
  KdaConvGradients<T> result{Array<T>(u.shape), Array<T>(weight.shape), Array<T>(initial.shape)};
  parallel_for(channels, [&](std::int64_t c) {
    const T* w = weight.row(c, taps);
    std::vector<T> d_sum;                                              // of all documents
    std::vector<std::vector<T>> seen(static_cast<std::size_t>(taps));  // by each tap
    for (std::size_t s = 0; s < documents.size(); ++s) {
      const Document& document = documents[s];
      const Array<T>& before = s == 0 ? initial : Array<T>();
      const Channel<T> channel(u, weight, before, document, c, d);
      for (std::int64_t r = 0; before.size() && r < taps - 1; ++r)
        result.d_initial.at(r, c) = round_at(point("kda_conv.backward/d_initial"), channel.gradient(w, r, 0));
      for (std::int64_t t = 0; t < document.length(); ++t)
        result.d_u.at(document.begin + t, c) = round_at(point("kda_conv.backward/d_u"), channel.gradient(w, taps - 1, t));
      d_sum.insert(d_sum.end(), channel.d_sum.begin(), channel.d_sum.end());
      for (std::int64_t j = 0; j < taps; ++j)
        seen[static_cast<std::size_t>(j)].insert(seen[static_cast<std::size_t>(j)].end(), channel.past.begin() + j,
                                                 channel.past.begin() + j + document.length());
    }
    for (std::int64_t j = 0; j < taps; ++j)
      result.d_weight.at(c, j) = dot(d_sum.data(), 1, seen[static_cast<std::size_t>(j)].data(), 1, tokens);
  });
  return result;
}

template <class T>
KdaGateGradients<T> kda_gate_backward(const Array<T>& f, const Array<T>& A_log, const Array<T>& dt_bias,
                                      std::optional<double> lower_bound, const Array<T>& dg) {
  const std::int64_t tokens = f.dim(0), heads = f.dim(1), width = f.dim(2);
  const Array<T> d = cotangent_or_zero(dg, f.shape, "kda_gate.backward d_g");
  const std::vector<T> ones(static_cast<std::size_t>(tokens), T(1.0));
  KdaGateGradients<T> result{Array<T>(f.shape), Array<T>(A_log.shape), Array<T>(dt_bias.shape)};
  parallel_for(heads, [&](std::int64_t h) {
    const T rate = exp(A_log[h]);
    std::vector<T> left, right;  // factors of d_A_log
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t i = 0; i < width; ++i) {
        const T x = dt_bias.size() ? T(f.at(t, h, i) + dt_bias[h * width + i]) : f.at(t, h, i);
        const T& slope = d.at(t, h, i);
        T raw;
        if (lower_bound) {
          const T s = sigmoid(T(rate * x));
          raw = slope * T(*lower_bound) * s * (T(1.0) - s) * rate;
          left.push_back(raw);
          right.push_back(x);
        } else {
          raw = -(rate * slope * sigmoid(x));
          left.push_back(slope);
          right.push_back(-(rate * softplus(x)));
        }
        result.d_f.at(t, h, i) = round_at(point("kda_gate.backward/d_f"), raw);
      }
    }
    result.d_A_log[h] = dot(left.data(), 1, right.data(), 1, tokens * width);
    if (dt_bias.size() == 0) return;
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t channel = h * width + i;
      result.d_dt_bias[channel] = dot(result.d_f.data.data() + channel, heads * width, ones.data(), 1, tokens);
    }
  });
  return result;
}

template <class T>
Array<T> beta_backward(const Array<T>& b, const Array<T>& d_beta) {
  const Array<T> d = cotangent_or_zero(d_beta, b.shape, "beta.backward d_beta");
  Array<T> d_b(b.shape);
  for (std::int64_t i = 0; i < b.size(); ++i) {
    const T s = sigmoid(b[i]);
    d_b[i] = round_at(point("beta.backward/d_b"), d[i] * s * (T(1.0) - s));
  }
  return d_b;
}

template <class T>
KdaAttentionGradients<T> kda_attention_backward(const KdaAttention<T>& in, const KdaAttentionCotangents<T>& d) {
  const Array<T> q = in.stored_q.size() ? in.stored_q : l2norm(in.q, in.l2norm_eps);
  const Array<T> k = in.stored_k.size() ? in.stored_k : l2norm(in.k, in.l2norm_eps);
  const Array<T> g = in.stored_g.size() ? in.stored_g : kda_gate(in.gate, in.A_log, in.dt_bias, in.lower_bound);
  const Array<T> step = in.stored_beta.size() ? in.stored_beta : beta(in.beta_logits);
  DeltaRuleGradients<T> rule =
      in.chunk ? delta_rule_chunked_backward(q, k, in.v, g, step, in.initial_state, in.cu_seqlens, in.scale, *in.chunk,
                                             d.d_o, d.d_final_state, false)
               : delta_rule_backward(q, k, in.v, g, step, in.initial_state, in.cu_seqlens, in.scale, d.d_o,
                                     d.d_final_state);
  const auto add = [](Array<T>& sum, const Array<T>& direct, const char* operand) {
    const Array<T> term = cotangent_or_zero(direct, sum.shape, operand);
    for (std::int64_t i = 0; direct.size() && i < sum.size(); ++i) sum[i] += term[i];
  };
  add(rule.d_g, d.d_g, "kda_attention.backward d_g");
  add(rule.d_beta, d.d_beta, "kda_attention.backward d_beta");
  KdaGateGradients<T> gate = kda_gate_backward(in.gate, in.A_log, in.dt_bias, in.lower_bound, rule.d_g);
  return {l2norm_backward(in.q, in.l2norm_eps, rule.d_q, in.stored_q),
          l2norm_backward(in.k, in.l2norm_eps, rule.d_k, in.stored_k),
          std::move(rule.d_v),
          std::move(gate.d_f),
          std::move(gate.d_A_log),
          std::move(gate.d_dt_bias),
          beta_backward(in.beta_logits, rule.d_beta),
          std::move(rule.d_initial_state)};
}

template <class T>
void add_kda_backward_ops(OpTable<T>& table) {
  const auto array = [](const Call<T>& call, const char* name) { return call.has(name) ? call.in(name) : Array<T>(); };
  const auto boundaries = [](const Call<T>& call) {
    return call.has("cu_seqlens") ? call.index("cu_seqlens") : Index();
  };
  table["kda_conv.backward"] = [=](const Call<T>& call) {
    KdaConvGradients<T> d = kda_conv_backward(call.in("u"), call.in("weight"), boundaries(call), array(call, "initial"),
                                              array(call, "d_y"));
    Results<T> results{{"d_u", std::move(d.d_u)}, {"d_weight", std::move(d.d_weight)}};
    if (call.has("initial")) results["d_initial"] = std::move(d.d_initial);
    return results;
  };
  table["kda_gate.backward"] = [=](const Call<T>& call) {
    KdaGateGradients<T> d = kda_gate_backward(call.in("f"), call.in("A_log"), array(call, "dt_bias"),
                                              call.optional_real("lower_bound"), array(call, "d_g"));
    Results<T> results{{"d_f", std::move(d.d_f)}, {"d_A_log", std::move(d.d_A_log)}};
    if (call.has("dt_bias")) results["d_dt_bias"] = std::move(d.d_dt_bias);
    return results;
  };
  table["beta.backward"] = [=](const Call<T>& call) {
    return Results<T>{{"d_b", beta_backward(call.in("b"), array(call, "d_beta"))}};
  };
  const auto results_of = [](const Call<T>& call, DeltaRuleGradients<T> d) {
    Results<T> results{{"d_q", std::move(d.d_q)},
                       {"d_k", std::move(d.d_k)},
                       {"d_v", std::move(d.d_v)},
                       {"d_g", std::move(d.d_g)},
                       {"d_beta", std::move(d.d_beta)}};
    if (call.has("initial_state")) results["d_initial_state"] = std::move(d.d_initial_state);
    return results;
  };
  table["delta_rule.backward"] = [=](const Call<T>& call) {
    return results_of(call,
                      delta_rule_backward(call.in("q"), call.in("k"), call.in("v"), call.in("g"), call.in("beta"),
                                          array(call, "initial_state"), boundaries(call), call.optional_real("scale"),
                                          array(call, "d_o"), array(call, "d_final_state")));
  };
  table["delta_rule_chunked.backward"] = [=](const Call<T>& call) {
    return results_of(
        call, delta_rule_chunked_backward(call.in("q"), call.in("k"), call.in("v"), call.in("g"), call.in("beta"),
                                          array(call, "initial_state"), boundaries(call), call.optional_real("scale"),
                                          call.integer("chunk"), array(call, "d_o"), array(call, "d_final_state")));
  };
  table["kda_attention.backward"] = [=](const Call<T>& call) {
    const std::optional<double> chunk = call.optional_real("chunk");
    const KdaAttention<T> inputs{call.in("q"),
                                 call.in("k"),
                                 call.in("v"),
                                 call.in("gate"),
                                 call.in("A_log"),
                                 array(call, "dt_bias"),
                                 call.in("beta_logits"),
                                 array(call, "initial_state"),
                                 boundaries(call),
                                 call.optional_real("lower_bound"),
                                 call.optional_real("scale"),
                                 call.real("l2norm_eps"),
                                 array(call, "stored_q"),
                                 array(call, "stored_k"),
                                 array(call, "stored_g"),
                                 array(call, "stored_beta"),
                                 chunk ? std::optional(static_cast<std::int64_t>(*chunk)) : std::nullopt};
    KdaAttentionGradients<T> d = kda_attention_backward(
        inputs, {array(call, "d_o"), array(call, "d_final_state"), array(call, "d_g"), array(call, "d_beta")});
    Results<T> results{{"d_q", std::move(d.d_q)},         {"d_k", std::move(d.d_k)},
                       {"d_v", std::move(d.d_v)},         {"d_gate", std::move(d.d_gate)},
                       {"d_A_log", std::move(d.d_A_log)}, {"d_beta_logits", std::move(d.d_beta_logits)}};
    if (call.has("dt_bias")) results["d_dt_bias"] = std::move(d.d_dt_bias);
    if (call.has("initial_state")) results["d_initial_state"] = std::move(d.d_initial_state);
    return results;
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                          \
  template KdaConvGradients<T> kda_conv_backward(const Array<T>&, const Array<T>&, const Index&, const Array<T>&,     \
                                                 const Array<T>&);                                                    \
  template KdaGateGradients<T> kda_gate_backward(const Array<T>&, const Array<T>&, const Array<T>&,                   \
                                                 std::optional<double>, const Array<T>&);                             \
  template Array<T> beta_backward(const Array<T>&, const Array<T>&);                                                  \
  template KdaAttentionGradients<T> kda_attention_backward(const KdaAttention<T>&, const KdaAttentionCotangents<T>&); \
  template void add_kda_backward_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
