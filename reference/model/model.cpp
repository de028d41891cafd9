#include "reference/model/model.h"

#include <algorithm>
#include <numeric>

#include "reference/model/layers.h"
#include "reference/ops/head.h"

namespace assay::reference {
namespace {

constexpr std::int64_t kIgnoreLabel = -100;
constexpr std::int64_t kNoToken = 0;  // embedded where MTP has no next token (megatron.md 7)

template <class T>
Var<T> embedding_rows(const Pass<T>& pass, const Weights& model, const Index& ids) {
  return Graph<T>::embed(pass.tape, ids, pass.weight(model, "language_model.embed_tokens.weight"),
                         pass.config.pad_token_id);
}

template <class T>
Var<T> embedded(const Pass<T>& pass, const Weights& model, const ModelInputs& inputs) {
  const Index ids({inputs.input_ids.size()}, inputs.input_ids.integers());
  const Var<T> x = embedding_rows(pass, model, ids);
  if (!inputs.pixel_values) {
    if (inputs.image_grid_thw) throw InputError("pixel_values", "missing", "image_grid_thw needs them");
    return x;
  }
  if (!pass.config.vision) {
    throw InputError("pixel_values", "given to a model without vision_config", "leave them out");
  }
  if (!inputs.image_grid_thw) throw InputError("image_grid_thw", "missing", "pixel_values need it");
  const Tensor& grid = *inputs.image_grid_thw;
  if (grid.shape().size() != 2 || grid.shape()[1] != 3 || is_real(grid.dtype())) {
    throw InputError("image_grid_thw",
                     std::string(name_of(grid.dtype())) + " of shape " + assay::to_string(grid.shape()),
                     "integers of shape [images, 3] are needed");
  }
  const Var<T> features =
      vision_tower(pass, model.below("visual."), *pass.config.vision, load<T>(*inputs.pixel_values), load_index(grid));
  return Graph<T>::feature_scatter(pass.tape, x, ids, pass.config.image_token_id, features);
}

/// One checkpoint layer: attention site and feed-forward site.
template <class T>
Var<T> layer(const Pass<T>& pass, const Weights& weights, std::int64_t l, const Var<T>& streams, Index& selected,
             std::vector<Var<T>>& router_logits) {
  using G = Graph<T>;
  const std::size_t i = static_cast<std::size_t>(l);
  const ModelConfig& config = pass.config;
  const std::string attention_path = "layers." + std::to_string(2 * l) + ".";
  const std::string ffn_path = "layers." + std::to_string(2 * l + 1) + ".";
  const auto normed = [&](const Var<T>& x, const std::string& name) {
    return G::rms_norm(pass.tape, x, pass.weight(weights, name + ".weight"), config.rms_norm_eps);
  };

  const Site<T> attention = enter_site(pass, weights, "hc_attn_", streams, attention_path);
  const Var<T> a = normed(attention.collapsed, "input_layernorm");
  Var<T> y;
  if (config.layer_types[i] == AttentionKind::kKda) {
    selected = Index();  // a later shared indexer may not look past a KDA layer
    y = kda_layer(pass, weights.below("self_attn."), a, attention_path + "kda.");
  } else {
    y = dsa_layer(pass, weights.below("self_attn."), a, attention_path + "dsa.",
                  config.indexer_types[i] == IndexerKind::kFull, selected);
  }
  const Var<T> between = pass.stage(
      attention_path + "streams", G::mhc_mix(pass.tape, streams, y, attention.mapping.h_post, attention.mapping.h_res));

  const Site<T> ffn = enter_site(pass, weights, "hc_ffn_", between, ffn_path);
  const Var<T> m = normed(ffn.collapsed, "post_attention_layernorm");
  Var<T> out = config.mlp_layer_types[i] == MlpKind::kDense
                   ? swiglu_mlp(pass, weights.below("mlp."), m, config.swiglu_limit)
                   : moe_layer(pass, weights.below("mlp."), m, ffn_path, &router_logits);
  out = pass.stage(ffn_path + "ffn.out", std::move(out));
  return pass.stage(ffn_path + "streams", G::mhc_mix(pass.tape, between, out, ffn.mapping.h_post, ffn.mapping.h_res));
}

/// Every row (or packed document) moved left by one, `fill` behind its last token.
template <class T>
Index shifted(const Pass<T>& pass, const Index& values, bool per_document, std::int64_t fill) {
  Index result({values.size()});
  for (const Row& row : pass.rows) {
    const Index own({row.length}, std::vector<std::int64_t>(values.data.begin() + row.begin,
                                                            values.data.begin() + row.begin + row.length));
    const Index next = mtp_shift(own, per_document ? row.documents : Index(), 1, fill);
    std::copy(next.data.begin(), next.data.end(), result.data.begin() + row.begin);
  }
  return result;
}

template <class T>
void run_mtp(const Pass<T>& pass, const Weights& model, const ModelInputs& inputs, const LossOptions& losses,
             const Var<T>& final_hidden, const Var<T>& lm_head, const Index& labels, ForwardResult<T>& result) {
  const ModelConfig& config = pass.config;
  Index ids({inputs.input_ids.size()}, inputs.input_ids.integers());
  Index targets = labels;
  Var<T> hidden = final_hidden;
  for (std::int64_t depth = 0; depth < config.num_nextn_predict_layers; ++depth) {
    const std::string path = "mtp." + std::to_string(depth) + ".";
    ids = shifted(pass, ids, true, kNoToken);
    const Weights layer_weights =
        model.below("language_model.layers." + std::to_string(config.num_hidden_layers + depth) + ".");
    hidden = mtp_layer(pass, layer_weights, embedding_rows(pass, model, ids), hidden, path);
    const Var<T> logits = pass.stage(path + "logits", Graph<T>::linear(pass.tape, hidden, lm_head));
    if (losses.mtp_scale == 0.0 || targets.size() == 0) continue;
    targets = shifted(pass, targets, true, kIgnoreLabel);
    const Var<T> loss =
        pass.stage(path + "loss", Graph<T>::cross_entropy_mean(pass.tape, logits, targets, kIgnoreLabel));
    result.mtp_losses.push_back(loss->value);
    const double share = losses.mtp_scale / static_cast<double>(config.num_nextn_predict_layers);
    result.total = Graph<T>::weighted_sum(pass.tape, result.total, loss, share);
  }
}

template <class T>
void add_aux_loss(const Pass<T>& pass, const LossOptions& losses, const std::vector<Var<T>>& router_logits,
                  ForwardResult<T>& result) {
  if (losses.aux_loss_coef == 0.0 || router_logits.empty()) return;
  // Over all layers and real tokens together (model.md 10).
  std::vector<std::int64_t> real;
  for (const Row& row : pass.rows)
    for (std::int64_t t = 0; t < row.length; ++t)
      if (row.real[static_cast<std::size_t>(t)]) real.push_back(row.begin + t);
  std::vector<Var<T>> parts;
  const std::int64_t count = static_cast<std::int64_t>(real.size() * router_logits.size());
  for (std::size_t l = 0; l < router_logits.size(); ++l) {
    std::vector<std::int64_t> places(real.size());
    std::iota(places.begin(), places.end(), static_cast<std::int64_t>(l * real.size()));
    parts.push_back(Moves<T>::placed(pass.tape, Moves<T>::gathered(pass.tape, router_logits[l], real), places, count));
  }
  const Var<T> loss = pass.stage("head.aux_loss", Graph<T>::aux_loss(pass.tape, Moves<T>::assembled(pass.tape, parts),
                                                                     pass.config.num_experts_per_tok));
  result.aux_loss = loss->value;
  result.total = Graph<T>::weighted_sum(pass.tape, result.total, loss, losses.aux_loss_coef);
}

}  // namespace

template <class T>
Site<T> enter_site(const Pass<T>& pass, const Weights& weights, const std::string& parameters, const Var<T>& streams,
                   const std::string& path) {
  const ModelConfig& config = pass.config;
  const MappingOptions options{.norm_eps = config.rms_norm_eps,
                               .norm_eps_inside_sqrt = true,
                               .pre_eps = config.hc_eps,
                               .sinkhorn_eps = config.hc_eps,
                               .iterations = config.hc_sinkhorn_iters};
  Site<T> site;
  site.mapping = Graph<T>::mhc_mapping(pass.tape, streams, pass.weight(weights, parameters + "fn"),
                                       pass.weight(weights, parameters + "scale"),
                                       pass.weight(weights, parameters + "base"), options);
  pass.stage(path + "mhc.h_post", site.mapping.h_post);
  pass.stage(path + "mhc.h_res", site.mapping.h_res);
  site.collapsed = pass.stage(path + "mhc.aggregate", Graph<T>::mhc_aggregate(pass.tape, streams, site.mapping.h_pre));
  return site;
}

template <class T>
ForwardResult<T> forward(const Checkpoint& checkpoint, const ModelInputs& inputs, const Conventions& conventions,
                         const LossOptions& losses, Observer<T>& observer, Tape<T>& tape) {
  using G = Graph<T>;
  const ModelConfig& config = checkpoint.config;
  const std::vector<Row> rows = rows_of(inputs, config);
  const Pass<T> pass{config, rows, conventions, observer, tape};
  const Weights root(checkpoint, ""), model = root.below("model.");
  Var<T> streams = G::stream_expand(tape, embedded(pass, model, inputs), config.hc_mult);
  Index selected;
  std::vector<Var<T>> router_logits;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l)
    streams = layer(pass, model.below("language_model.layers." + std::to_string(l) + "."), l, streams, selected,
                    router_logits);
  const Var<T> contracted = pass.stage("head.contract", G::contract_mean(tape, streams));
  const Var<T> normed =
      pass.stage("head.norm",
                 G::rms_norm(tape, contracted, pass.weight(model, "language_model.norm.weight"), config.rms_norm_eps));
  const Var<T> lm_head = pass.weight(root, "lm_head.weight");
  ForwardResult<T> result;
  const Var<T> logits = pass.stage("head.logits", G::linear(tape, normed, lm_head));
  Index labels;
  if (inputs.labels) {
    // The last token of a row, or of a packed document, has no label.
    labels = shifted(pass, Index({inputs.labels->size()}, inputs.labels->integers()), inputs.cu_seqlens.has_value(),
                     kIgnoreLabel);
    result.total = pass.stage("head.loss", G::cross_entropy_mean(tape, logits, labels, kIgnoreLabel));
    result.loss = result.total->value;
    add_aux_loss(pass, losses, router_logits, result);
  }
  if (config.num_nextn_predict_layers > 0) run_mtp(pass, model, inputs, losses, normed, lm_head, labels, result);
  const Shape& batch = inputs.input_ids.shape();
  result.logits = logits->value.reshaped({batch[0], batch[1], config.vocab_size});
  return result;
}

template <class T>
ForwardResult<T> forward(const Checkpoint& checkpoint, const ModelInputs& inputs, const Conventions& conventions,
                         Observer<T>& observer) {
  Tape<T> tape(false);
  return forward(checkpoint, inputs, conventions, LossOptions{}, observer, tape);
}

template <class T>
ModelGradients<T> gradients(const Checkpoint& checkpoint, const ModelInputs& inputs, const Conventions& conventions,
                            const LossOptions& losses, Observer<T>& observer,
                            const std::map<std::string, Array<T>>& weights) {
  if (!inputs.labels) throw InputError("labels", "missing", "gradients are those of the loss: labels are needed");
  Tape<T> tape(true);
  for (const auto& [name, value] : weights) tape.preset(name, value);
  ModelGradients<T> result;
  result.forward = forward(checkpoint, inputs, conventions, losses, observer, tape);
  result.saved_bytes = tape.saved_bytes();
  tape.backward(result.forward.total, Array<T>({1}, {T(1.0)}));
  result.gradients = tape.gradients();
  for (const auto& [name, tensor] : checkpoint.file.tensors())
    if (!result.gradients.count(name)) result.none.push_back(name);
  return result;
}

#define ASSAY_INSTANTIATE(T)                                                                                          \
  template Site<T> enter_site(const Pass<T>&, const Weights&, const std::string&, const Var<T>&, const std::string&); \
  template ForwardResult<T> forward(const Checkpoint&, const ModelInputs&, const Conventions&, const LossOptions&,    \
                                    Observer<T>&, Tape<T>&);                                                          \
  template ForwardResult<T> forward(const Checkpoint&, const ModelInputs&, const Conventions&, Observer<T>&);         \
  template ModelGradients<T> gradients(const Checkpoint&, const ModelInputs&, const Conventions&, const LossOptions&, \
                                       Observer<T>&, const std::map<std::string, Array<T>>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
