#include "reference/model/graph.h"

#include "reference/linear_algebra.h"
#include "reference/ops/ffn.h"
#include "reference/ops/ffn_backward.h"
#include "reference/ops/head.h"
#include "reference/ops/head_backward.h"
#include "reference/ops/linear.h"
#include "reference/ops/linear_backward.h"
#include "reference/ops/mhc_backward.h"
#include "reference/ops/norm.h"
#include "reference/ops/norm_backward.h"
#include "reference/ops/router_backward.h"

namespace assay::reference {
namespace {

template <class T>
const Array<T>& value_or_empty(const Var<T>& var) {
  static const Array<T> empty;
  return var ? var->value : empty;
}

template <class T>
void add_if(const Var<T>& var, const Array<T>& gradient) {
  if (var) Tape<T>::add(var, gradient);
}

}  // namespace

template <class T>
Var<T> Graph<T>::embed(Tape<T>& tape, const Index& ids, const Var<T>& table, std::optional<std::int64_t> padding_row) {
  return tape.record(reference::embed(ids, table->value), [=](const Array<T>& dy) {
    Tape<T>::add(table, embed_backward(ids, table->value.dim(0), table->value.dim(1), dy, padding_row));
  });
}

template <class T>
Var<T> Graph<T>::linear(Tape<T>& tape, const Var<T>& x, const Var<T>& weight, const Var<T>& bias) {
  return tape.record(reference::linear(x->value, weight->value, value_or_empty(bias)), [=](const Array<T>& dy) {
    const auto gradient = linear_backward(x->value, weight->value, bias != nullptr, dy);
    Tape<T>::add(x, gradient.d_x);
    Tape<T>::add(weight, gradient.d_weight);
    add_if(bias, gradient.d_bias);
  });
}

template <class T>
Var<T> Graph<T>::product(Tape<T>& tape, const Var<T>& x, const Var<T>& weight) {
  return tape.record(matmul_nt(x->value, weight->value), [=](const Array<T>& dy) {
    const auto gradient = product_backward(x->value, weight->value, dy);
    Tape<T>::add(x, gradient.d_x);
    Tape<T>::add(weight, gradient.d_weight);
  });
}

template <class T>
Var<T> Graph<T>::rms_norm(Tape<T>& tape, const Var<T>& x, const Var<T>& weight, double eps) {
  return tape.record(reference::rms_norm(x->value, weight->value, eps), [=](const Array<T>& dy) {
    const auto gradient = rms_norm_backward(x->value, weight->value, eps, dy);
    Tape<T>::add(x, gradient.d_x);
    Tape<T>::add(weight, gradient.d_weight);
  });
}

template <class T>
Var<T> Graph<T>::layer_norm(Tape<T>& tape, const Var<T>& x, const Var<T>& weight, const Var<T>& bias, double eps) {
  return tape.record(
      reference::layer_norm(x->value, weight->value, value_or_empty(bias), eps), [=](const Array<T>& dy) {
        const auto gradient = layer_norm_backward(x->value, weight->value, value_or_empty(bias), eps, dy);
        Tape<T>::add(x, gradient.d_x);
        Tape<T>::add(weight, gradient.d_weight);
        add_if(bias, gradient.d_bias);
      });
}

template <class T>
Var<T> Graph<T>::gated_rms_norm(Tape<T>& tape, const Var<T>& o, const Var<T>& z, const Var<T>& weight, double eps) {
  return tape.record(reference::gated_rms_norm(o->value, z->value, weight->value, eps), [=](const Array<T>& dy) {
    const auto gradient = gated_rms_norm_backward(o->value, z->value, weight->value, eps, dy);
    Tape<T>::add(o, gradient.d_o);
    Tape<T>::add(z, gradient.d_z);
    Tape<T>::add(weight, gradient.d_weight);
  });
}

template <class T>
Var<T> Graph<T>::l2norm(Tape<T>& tape, const Var<T>& x, double eps) {
  return tape.record(reference::l2norm(x->value, eps),
                     [=](const Array<T>& dy) { Tape<T>::add(x, l2norm_backward(x->value, eps, dy)); });
}

template <class T>
Var<T> Graph<T>::residual_add(Tape<T>& tape, const Var<T>& a, const Var<T>& b) {
  return tape.record(reference::residual_add(a->value, b->value), [=](const Array<T>& dy) {
    Tape<T>::add(a, dy);
    Tape<T>::add(b, dy);
  });
}

template <class T>
Var<T> Graph<T>::swiglu(Tape<T>& tape, const Var<T>& gate, const Var<T>& up, std::optional<double> limit) {
  return tape.record(reference::swiglu(gate->value, up->value, limit), [=](const Array<T>& dy) {
    const auto gradient = swiglu_backward(gate->value, up->value, limit, dy);
    Tape<T>::add(gate, gradient.d_gate);
    Tape<T>::add(up, gradient.d_up);
  });
}

template <class T>
Var<T> Graph<T>::stream_expand(Tape<T>& tape, const Var<T>& x, std::int64_t n) {
  return tape.record(reference::stream_expand(x->value, n),
                     [=](const Array<T>& dy) { Tape<T>::add(x, stream_expand_backward(dy, n)); });
}

template <class T>
MappingVars<T> Graph<T>::mhc_mapping(Tape<T>& tape, const Var<T>& x, const Var<T>& weight, const Var<T>& alpha,
                                     const Var<T>& bias, const MappingOptions& options) {
  Mapping<T> m = reference::mhc_mapping(x->value, weight->value, alpha->value, bias->value, options);
  std::vector<Array<T>> values{std::move(m.h_pre), std::move(m.h_post), std::move(m.h_res)};
  const std::vector<Var<T>> outputs = tape.record(std::move(values), [=](const std::vector<Var<T>>& y) {
    const auto gradient = mhc_mapping_backward(x->value, weight->value, alpha->value, bias->value, options,
                                               {y[0]->gradient, y[1]->gradient, y[2]->gradient, {}, {}, {}});
    Tape<T>::add(x, gradient.d_x);
    Tape<T>::add(weight, gradient.d_weight);
    Tape<T>::add(alpha, gradient.d_alpha);
    Tape<T>::add(bias, gradient.d_bias);
  });
  return {outputs[0], outputs[1], outputs[2]};
}

template <class T>
Var<T> Graph<T>::mhc_aggregate(Tape<T>& tape, const Var<T>& x, const Var<T>& h_pre) {
  return tape.record(reference::mhc_aggregate(x->value, h_pre->value), [=](const Array<T>& dy) {
    const auto gradient = mhc_aggregate_backward(x->value, h_pre->value, dy, true);
    Tape<T>::add(x, gradient.d_x);
    Tape<T>::add(h_pre, gradient.d_h_pre);
  });
}

template <class T>
Var<T> Graph<T>::mhc_mix(Tape<T>& tape, const Var<T>& residual, const Var<T>& branch, const Var<T>& h_post,
                         const Var<T>& h_res) {
  const Array<T> no_bias;
  return tape.record(reference::mhc_mix(residual->value, branch->value, h_post->value, h_res->value, no_bias),
                     [=](const Array<T>& dy) {
                       const auto gradient = mhc_mix_backward(residual->value, branch->value, h_post->value,
                                                              h_res->value, no_bias, dy, true);
                       Tape<T>::add(residual, gradient.d_residual);
                       Tape<T>::add(branch, gradient.d_branch);
                       Tape<T>::add(h_post, gradient.d_h_post);
                       Tape<T>::add(h_res, gradient.d_h_res);
                     });
}

template <class T>
Var<T> Graph<T>::contract_mean(Tape<T>& tape, const Var<T>& x) {
  return tape.record(reference::contract_mean(x->value),
                     [=](const Array<T>& dy) { Tape<T>::add(x, contract_mean_backward(dy, x->value.dim(1))); });
}

template <class T>
Var<T> Graph<T>::route_weights(Tape<T>& tape, const Var<T>& logits, const Index& experts, const RouterRule& rule) {
  return tape.record(reference::route_weights(logits->value, experts, rule), [=](const Array<T>& dy) {
    Tape<T>::add(logits, route_weights_backward(logits->value, experts, rule, dy, Array<T>()));
  });
}

template <class T>
Var<T> Graph<T>::combine(Tape<T>& tape, const Var<T>& expert_out, const Var<T>& weights, const Var<T>& shared) {
  return tape.record(reference::combine(expert_out->value, weights->value, value_or_empty(shared)),
                     [=](const Array<T>& dy) {
                       const auto gradient = combine_backward(expert_out->value, weights->value, shared != nullptr, dy);
                       Tape<T>::add(expert_out, gradient.d_expert_out);
                       Tape<T>::add(weights, gradient.d_weights);
                       add_if(shared, gradient.d_shared);
                     });
}

template <class T>
Var<T> Graph<T>::cross_entropy_mean(Tape<T>& tape, const Var<T>& logits, const Index& labels,
                                    std::int64_t ignore_index) {
  return tape.record(cross_entropy(logits->value, labels, ignore_index).mean, [=](const Array<T>& dy) {
    Tape<T>::add(logits, cross_entropy_backward(logits->value, labels, ignore_index, Array<T>(), dy, Array<T>()));
  });
}

template <class T>
Var<T> Graph<T>::aux_loss(Tape<T>& tape, const Var<T>& logits, std::int64_t topk) {
  return tape.record(reference::aux_loss(logits->value, topk),
                     [=](const Array<T>& dy) { Tape<T>::add(logits, aux_loss_backward(logits->value, topk, dy)); });
}

template <class T>
Var<T> Graph<T>::weighted_sum(Tape<T>& tape, const Var<T>& a, const Var<T>& b, double factor) {
  Array<T> y({1});
  y[0] = a->value[0] + constant<T>(factor) * b->value[0];
  return tape.record(std::move(y), [=](const Array<T>& dy) {
    Tape<T>::add(a, dy);
    Array<T> scaled({1});
    scaled[0] = constant<T>(factor) * dy[0];
    Tape<T>::add(b, scaled);
  });
}

#define ASSAY_INSTANTIATE(T)                                                                                          \
  template Var<T> Graph<T>::embed(Tape<T>&, const Index&, const Var<T>&, std::optional<std::int64_t>);                \
  template Var<T> Graph<T>::linear(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&);                            \
  template Var<T> Graph<T>::product(Tape<T>&, const Var<T>&, const Var<T>&);                                          \
  template Var<T> Graph<T>::rms_norm(Tape<T>&, const Var<T>&, const Var<T>&, double);                                 \
  template Var<T> Graph<T>::layer_norm(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&, double);                \
  template Var<T> Graph<T>::gated_rms_norm(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&, double);            \
  template Var<T> Graph<T>::l2norm(Tape<T>&, const Var<T>&, double);                                                  \
  template Var<T> Graph<T>::residual_add(Tape<T>&, const Var<T>&, const Var<T>&);                                     \
  template Var<T> Graph<T>::swiglu(Tape<T>&, const Var<T>&, const Var<T>&, std::optional<double>);                    \
  template Var<T> Graph<T>::stream_expand(Tape<T>&, const Var<T>&, std::int64_t);                                     \
  template MappingVars<T> Graph<T>::mhc_mapping(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&, const Var<T>&, \
                                                const MappingOptions&);                                               \
  template Var<T> Graph<T>::mhc_aggregate(Tape<T>&, const Var<T>&, const Var<T>&);                                    \
  template Var<T> Graph<T>::mhc_mix(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&, const Var<T>&);            \
  template Var<T> Graph<T>::contract_mean(Tape<T>&, const Var<T>&);                                                   \
  template Var<T> Graph<T>::route_weights(Tape<T>&, const Var<T>&, const Index&, const RouterRule&);                  \
  template Var<T> Graph<T>::combine(Tape<T>&, const Var<T>&, const Var<T>&, const Var<T>&);                           \
  template Var<T> Graph<T>::cross_entropy_mean(Tape<T>&, const Var<T>&, const Index&, std::int64_t);                  \
  template Var<T> Graph<T>::aux_loss(Tape<T>&, const Var<T>&, std::int64_t);                                          \
  template Var<T> Graph<T>::weighted_sum(Tape<T>&, const Var<T>&, const Var<T>&, double);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
