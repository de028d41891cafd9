#include "reference/ops/kda.h"

#include <algorithm>

#include "reference/ops/delta_rule.h"
#include "reference/ops/documents.h"
#include "reference/ops/norm.h"
#include "reference/parallel.h"

namespace assay::reference {

template <class T>
Array<T> kda_conv(const Array<T>& u, const Array<T>& weight, const Index& cu_seqlens, const Array<T>& initial) {
  const std::int64_t tokens = u.dim(0), channels = u.dim(1), taps = weight.dim(1);
  const std::vector<Document> documents = documents_of(cu_seqlens, tokens);
  std::vector<std::int64_t> first_token(static_cast<std::size_t>(tokens));
  for (const Document& document : documents) {
    for (std::int64_t t = document.begin; t < document.end; ++t)
      first_token[static_cast<std::size_t>(t)] = document.begin;
  }
  const std::int64_t end_of_first = documents.empty() ? 0 : documents.front().end;
  Array<T> y(u.shape);
  parallel_for(tokens, [&](std::int64_t t) {
    const std::int64_t age = t - first_token[static_cast<std::size_t>(t)];
    const std::int64_t missing = std::max<std::int64_t>(0, taps - 1 - age);  // taps before the document
    const bool continued = initial.size() != 0 && t < end_of_first;
    for (std::int64_t c = 0; c < channels; ++c) {
      std::vector<T> window;
      for (std::int64_t j = continued ? 0 : missing; j < taps; ++j)
        window.push_back(j < missing ? initial.at(age + j, c) : u.at(t - taps + 1 + j, c));
      const auto count = static_cast<std::int64_t>(window.size());
      const T sum = dot(window.data(), 1, weight.row(c, taps) + taps - count, 1, count);
      y.at(t, c) = round_at(point("kda_conv/y"), sum * sigmoid(sum));
    }
  });
  return y;
}

template <class T>
Array<T> kda_gate(const Array<T>& f, const Array<T>& A_log, const Array<T>& dt_bias,
                  std::optional<double> lower_bound) {
  const std::int64_t heads = f.dim(1), width = f.dim(2);
  std::vector<T> rate;
  for (std::int64_t h = 0; h < heads; ++h) rate.push_back(exp(A_log[h]));
  Array<T> g(f.shape);
  parallel_for(f.dim(0) * heads, [&](std::int64_t row) {
    const std::int64_t h = row % heads;
    const T& r = rate[static_cast<std::size_t>(h)];
    for (std::int64_t d = 0; d < width; ++d) {
      T x = f[row * width + d];
      if (dt_bias.size()) x = x + dt_bias[h * width + d];
      g[row * width + d] = lower_bound ? T(T(*lower_bound) * sigmoid(T(r * x))) : T(-(r * softplus(x)));
    }
  });
  return g;
}

template <class T>
Array<T> beta(const Array<T>& b) {
  Array<T> result(b.shape);
  for (std::int64_t i = 0; i < b.size(); ++i) result[i] = round_at(point("beta/beta"), sigmoid(b[i]));
  return result;
}

template <class T>
void add_kda_ops(OpTable<T>& table) {
  const auto array = [](const Call<T>& call, const char* name) { return call.has(name) ? call.in(name) : Array<T>(); };
  const auto boundaries = [](const Call<T>& call) {
    return call.has("cu_seqlens") ? call.index("cu_seqlens") : Index();
  };
  table["kda_conv"] = [=](const Call<T>& call) {
    return Results<T>{{"y", kda_conv(call.in("u"), call.in("weight"), boundaries(call), array(call, "initial"))}};
  };
  table["kda_gate"] = [=](const Call<T>& call) {
    return Results<T>{
        {"g", kda_gate(call.in("f"), call.in("A_log"), array(call, "dt_bias"), call.optional_real("lower_bound"))}};
  };
  table["beta"] = [](const Call<T>& call) { return Results<T>{{"beta", beta(call.in("b"))}}; };
  const auto results = [](DeltaRule<T> rule) {
    return Results<T>{{"o", std::move(rule.o)}, {"final_state", std::move(rule.final_state)}};
  };
  table["kda_attention"] = [](const Call<T>& call) {
    const Array<T> bias = call.has("dt_bias") ? call.in("dt_bias") : Array<T>();
    const Array<T> state = call.has("initial_state") ? call.in("initial_state") : Array<T>();
    const Index documents = call.has("cu_seqlens") ? call.index("cu_seqlens") : Index();
    const double eps = call.real("l2norm_eps");
    Array<T> g = kda_gate(call.in("gate"), call.in("A_log"), bias, call.optional_real("lower_bound"));
    Array<T> b = beta(call.in("beta_logits"));
    const auto stored_or = [&call](const char* stored, const auto& compute) -> Array<T> {
      return call.has(stored) ? call.in(stored) : compute();
    };
    const Array<T> q = stored_or("stored_q", [&] { return l2norm(call.in("q"), eps); });
    const Array<T> k = stored_or("stored_k", [&] { return l2norm(call.in("k"), eps); });
    const Array<T> decay = stored_or("stored_g", [&] { return g; }), step = stored_or("stored_beta", [&] { return b; });
    const std::optional<double> scale = call.optional_real("scale"), chunk = call.optional_real("chunk");
    DeltaRule<T> rule = chunk ? delta_rule_chunked(q, k, call.in("v"), decay, step, state, documents, scale,
                                                   static_cast<std::int64_t>(*chunk))
                              : delta_rule(q, k, call.in("v"), decay, step, state, documents, scale);
    return Results<T>{{"o", std::move(rule.o)},
                      {"final_state", std::move(rule.final_state)},
                      {"g", std::move(g)},
                      {"beta", std::move(b)}};
  };
  table["delta_rule"] = [=](const Call<T>& call) {
    return results(delta_rule(call.in("q"), call.in("k"), call.in("v"), call.in("g"), call.in("beta"),
                              array(call, "initial_state"), boundaries(call), call.optional_real("scale")));
  };
  table["delta_rule_chunked"] = [=](const Call<T>& call) {
    return results(delta_rule_chunked(call.in("q"), call.in("k"), call.in("v"), call.in("g"), call.in("beta"),
                                      array(call, "initial_state"), boundaries(call), call.optional_real("scale"),
                                      call.integer("chunk")));
  };
}

#define ASSAY_INSTANTIATE(T)                                                                            \
  template Array<T> kda_conv(const Array<T>&, const Array<T>&, const Index&, const Array<T>&);          \
  template Array<T> kda_gate(const Array<T>&, const Array<T>&, const Array<T>&, std::optional<double>); \
  template Array<T> beta(const Array<T>&);                                                              \
  template void add_kda_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
