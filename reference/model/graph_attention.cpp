#include "reference/model/graph.h"
#include "reference/ops/attention_backward.h"
#include "reference/ops/delta_rule.h"
#include "reference/ops/delta_rule_backward.h"
#include "reference/ops/kda.h"
#include "reference/ops/kda_backward.h"
#include "reference/ops/vision.h"
#include "reference/ops/vision_backward.h"

namespace assay::reference {

template <class T>
Var<T> Graph<T>::kda_conv(Tape<T>& tape, const Var<T>& u, const Var<T>& weight, const Index& cu_seqlens) {
  const Array<T> none;
  return tape.record(reference::kda_conv(u->value, weight->value, cu_seqlens, none), [=](const Array<T>& dy) {
    const auto gradient = kda_conv_backward(u->value, weight->value, cu_seqlens, none, dy);
    Tape<T>::add(u, gradient.d_u);
    Tape<T>::add(weight, gradient.d_weight);
  });
}

template <class T>
Var<T> Graph<T>::kda_gate(Tape<T>& tape, const Var<T>& f, const Var<T>& A_log, const Var<T>& dt_bias,
                          std::optional<double> lower_bound) {
  return tape.record(reference::kda_gate(f->value, A_log->value, dt_bias->value, lower_bound), [=](const Array<T>& dy) {
    const auto gradient = kda_gate_backward(f->value, A_log->value, dt_bias->value, lower_bound, dy);
    Tape<T>::add(f, gradient.d_f);
    Tape<T>::add(A_log, gradient.d_A_log);
    Tape<T>::add(dt_bias, gradient.d_dt_bias);
  });
}

template <class T>
Var<T> Graph<T>::beta(Tape<T>& tape, const Var<T>& b) {
  return tape.record(reference::beta(b->value),
                     [=](const Array<T>& dy) { Tape<T>::add(b, beta_backward(b->value, dy)); });
}

template <class T>
Var<T> Graph<T>::delta_rule(Tape<T>& tape, const Var<T>& q, const Var<T>& k, const Var<T>& v, const Var<T>& g,
                            const Var<T>& beta, const Index& cu_seqlens) {
  const Array<T> none;
  Array<T> o =
      reference::delta_rule(q->value, k->value, v->value, g->value, beta->value, none, cu_seqlens, std::nullopt).o;
  return tape.record(std::move(o), [=](const Array<T>& dy) {
    const auto gradient = delta_rule_backward(q->value, k->value, v->value, g->value, beta->value, none, cu_seqlens,
                                              std::optional<double>(), dy, none);
    Tape<T>::add(q, gradient.d_q);
    Tape<T>::add(k, gradient.d_k);
    Tape<T>::add(v, gradient.d_v);
    Tape<T>::add(g, gradient.d_g);
    Tape<T>::add(beta, gradient.d_beta);
  });
}

template <class T>
AttentionVars<T> Graph<T>::mla_attention(Tape<T>& tape, const Var<T>& q, const Var<T>& k, const Var<T>& v,
                                         const Index& ids, const T& scale) {
  MaskedAttention<T> attention = reference::mla_attention(q->value, k->value, v->value, ids, scale);
  std::vector<Array<T>> values{std::move(attention.o), std::move(attention.weights)};
  const std::vector<Var<T>> outputs = tape.record(std::move(values), [=](const std::vector<Var<T>>& y) {
    const auto gradient =
        mla_attention_backward(q->value, k->value, v->value, ids, scale, y[0]->gradient, y[1]->gradient, Array<T>());
    Tape<T>::add(q, gradient.d_q);
    Tape<T>::add(k, gradient.d_k);
    Tape<T>::add(v, gradient.d_v);
  });
  return {outputs[0], outputs[1]};
}

template <class T>
AttentionVars<T> Graph<T>::uniform_attention(Tape<T>& tape, const Var<T>& q, const Var<T>& k, const Var<T>& v,
                                             const Index& ids, const T& scale) {
  // Scores of a zero query, or against zero keys, are equal: the weights are uniform either way, and the derivative of
  // the scores depends on weights and values only. With the query zero the formula gives d_q and d_v, with the keys
  // zero d_k.
  const Array<T> no_q(q->value.shape);
  MaskedAttention<T> attention = reference::mla_attention(no_q, k->value, v->value, ids, scale);
  std::vector<Array<T>> values{std::move(attention.o), std::move(attention.weights)};
  const std::vector<Var<T>> outputs = tape.record(std::move(values), [=](const std::vector<Var<T>>& y) {
    const Array<T> no_k(k->value.shape);
    const auto query_side =
        mla_attention_backward(no_q, k->value, v->value, ids, scale, y[0]->gradient, y[1]->gradient, Array<T>());
    const auto key_side =
        mla_attention_backward(q->value, no_k, v->value, ids, scale, y[0]->gradient, y[1]->gradient, Array<T>());
    Tape<T>::add(q, query_side.d_q);
    Tape<T>::add(v, query_side.d_v);
    Tape<T>::add(k, key_side.d_k);
  });
  return {outputs[0], outputs[1]};
}

template <class T>
Var<T> Graph<T>::rope_2d(Tape<T>& tape, const Var<T>& x, const Index& positions, double theta) {
  return tape.record(reference::rope_2d(x->value, positions, theta),
                     [=](const Array<T>& dy) { Tape<T>::add(x, rope_2d_backward(x->value, positions, theta, dy)); });
}

template <class T>
Var<T> Graph<T>::segment_attention(Tape<T>& tape, const Var<T>& q, const Var<T>& k, const Var<T>& v,
                                   const Index& cu_seqlens, double scale) {
  return tape.record(reference::segment_attention(q->value, k->value, v->value, cu_seqlens, scale).o,
                     [=](const Array<T>& dy) {
                       const auto gradient =
                           segment_attention_backward(q->value, k->value, v->value, cu_seqlens, scale, dy, Array<T>());
                       Tape<T>::add(q, gradient.d_q);
                       Tape<T>::add(k, gradient.d_k);
                       Tape<T>::add(v, gradient.d_v);
                     });
}

template <class T>
Var<T> Graph<T>::gelu(Tape<T>& tape, const Var<T>& x) {
  return tape.record(reference::gelu(x->value),
                     [=](const Array<T>& dy) { Tape<T>::add(x, gelu_backward(x->value, dy)); });
}

template <class T>
Var<T> Graph<T>::downsample(Tape<T>& tape, const Var<T>& x, const Var<T>& weight, const Var<T>& bias) {
  return tape.record(reference::downsample(x->value, weight->value, bias->value), [=](const Array<T>& dy) {
    const auto gradient = downsample_backward(x->value, weight->value, true, dy);
    Tape<T>::add(x, gradient.d_x);
    Tape<T>::add(weight, gradient.d_weight);
    Tape<T>::add(bias, gradient.d_bias);
  });
}

template <class T>
Var<T> Graph<T>::feature_scatter(Tape<T>& tape, const Var<T>& x, const Index& ids, std::int64_t token_id,
                                 const Var<T>& features) {
  return tape.record(reference::feature_scatter(x->value, ids, token_id, features->value), [=](const Array<T>& dy) {
    const auto gradient = feature_scatter_backward(x->value, ids, token_id, features->value, dy);
    Tape<T>::add(x, gradient.d_x);
    Tape<T>::add(features, gradient.d_features);
  });
}

#define ASSAY_INSTANTIATE(T)                                                                                        \
  template Var<T> Graph<T>::kda_conv(Tape<T>&, const Var<T>&, const Var<T>&, const Index&);                         \
  template Var<T> Graph<T>::kda_gate(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&, std::optional<double>); \
  template Var<T> Graph<T>::beta(Tape<T>&, const Var<T>&);                                                          \
  template Var<T> Graph<T>::delta_rule(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&, const Var<T>&,        \
                                       const Var<T>&, const Index&);                                                \
  template AttentionVars<T> Graph<T>::mla_attention(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&,          \
                                                    const Index&, const T&);                                        \
  template AttentionVars<T> Graph<T>::uniform_attention(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&,      \
                                                        const Index&, const T&);                                    \
  template Var<T> Graph<T>::rope_2d(Tape<T>&, const Var<T>&, const Index&, double);                                 \
  template Var<T> Graph<T>::segment_attention(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&, const Index&,  \
                                              double);                                                              \
  template Var<T> Graph<T>::gelu(Tape<T>&, const Var<T>&);                                                          \
  template Var<T> Graph<T>::downsample(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&);                      \
  template Var<T> Graph<T>::feature_scatter(Tape<T>&, const Var<T>&, const Index&, std::int64_t, const Var<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
