#include "reference/model/model.h"

#include "reference/model/layers.h"
#include "reference/ops/head.h"
#include "reference/ops/linear.h"
#include "reference/ops/norm.h"
#include "reference/ops/vision.h"

namespace assay::reference {
namespace {

constexpr std::int64_t kIgnoreLabel = -100;
constexpr std::int64_t kNoToken = 0;  // embedded where MTP has no next token (megatron.md 7)

template <class T>
Array<T> embedded(const Pass<T>& pass, const Weights& model, const ModelInputs& inputs) {
  const Index ids({inputs.input_ids.size()}, inputs.input_ids.integers());
  Array<T> x = embed(ids, model.get<T>("language_model.embed_tokens.weight"));
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
  const Array<T> features =
      vision_tower(pass, model.below("visual."), *pass.config.vision, load<T>(*inputs.pixel_values), load_index(grid));
  return feature_scatter(x, ids, pass.config.image_token_id, features);
}

/// One checkpoint layer: attention site and feed-forward site.
template <class T>
Array<T> layer(const Pass<T>& pass, const Weights& weights, std::int64_t l, const Array<T>& streams, Index& selected) {
  const std::size_t i = static_cast<std::size_t>(l);
  const ModelConfig& config = pass.config;
  const std::string attention_path = "layers." + std::to_string(2 * l) + ".";
  const std::string ffn_path = "layers." + std::to_string(2 * l + 1) + ".";

  const Site<T> attention = enter_site(pass, weights, "hc_attn_", streams, attention_path);
  const Array<T> a = rms_norm(attention.collapsed, weights.get<T>("input_layernorm.weight"), config.rms_norm_eps);
  Array<T> y;
  if (config.layer_types[i] == AttentionKind::kKda) {
    selected = Index();  // a later shared indexer may not look past a KDA layer
    y = kda_layer(pass, weights.below("self_attn."), a, attention_path + "kda.");
  } else {
    y = dsa_layer(pass, weights.below("self_attn."), a, attention_path + "dsa.",
                  config.indexer_types[i] == IndexerKind::kFull, selected);
  }
  const Array<T> between = pass.stage(
      attention_path + "streams", mhc_mix(streams, y, attention.mapping.h_post, attention.mapping.h_res, Array<T>()));

  const Site<T> ffn = enter_site(pass, weights, "hc_ffn_", between, ffn_path);
  const Array<T> m = rms_norm(ffn.collapsed, weights.get<T>("post_attention_layernorm.weight"), config.rms_norm_eps);
  Array<T> out = config.mlp_layer_types[i] == MlpKind::kDense
                     ? swiglu_mlp(weights.below("mlp."), m, config.swiglu_limit)
                     : moe_layer<T>(pass, weights.below("mlp."), m, ffn_path, nullptr);
  out = pass.stage(ffn_path + "ffn.out", std::move(out));
  return pass.stage(ffn_path + "streams", mhc_mix(between, out, ffn.mapping.h_post, ffn.mapping.h_res, Array<T>()));
}

/// Mean loss over all rows of labels that are not shifted yet. The last token of a packed document has no label.
template <class T>
Array<T> mean_loss(const Pass<T>& pass, const Array<T>& logits, const Tensor& labels, bool packed) {
  Index shifted({labels.size()});
  for (const Row& row : pass.rows) {
    const Tensor own = labels.reshaped({labels.size()}).rows(row.begin, row.begin + row.length);
    const Index next = mtp_shift(load_index(own), packed ? row.documents : Index(), 1, kIgnoreLabel);
    std::copy(next.data.begin(), next.data.end(), shifted.data.begin() + row.begin);
  }
  return cross_entropy(logits, shifted, kIgnoreLabel).mean;
}

template <class T>
void run_mtp(const Pass<T>& pass, const Weights& model, const ModelInputs& inputs, const Array<T>& final_hidden,
             const Array<T>& lm_head) {
  const ModelConfig& config = pass.config;
  Index ids({inputs.input_ids.size()}, inputs.input_ids.integers());
  Array<T> hidden = final_hidden;
  for (std::int64_t depth = 0; depth < config.num_nextn_predict_layers; ++depth) {
    const std::string path = "mtp." + std::to_string(depth) + ".";
    for (const Row& row : pass.rows) {
      Index own({row.length},
                std::vector<std::int64_t>(ids.data.begin() + row.begin, ids.data.begin() + row.begin + row.length));
      own = mtp_shift(own, row.documents, 1, kNoToken);
      std::copy(own.data.begin(), own.data.end(), ids.data.begin() + row.begin);
    }
    const Array<T> embedding = embed(ids, model.get<T>("language_model.embed_tokens.weight"));
    const Weights layer_weights =
        model.below("language_model.layers." + std::to_string(config.num_hidden_layers + depth) + ".");
    hidden = mtp_layer(pass, layer_weights, embedding, hidden, path);
    pass.stage(path + "logits", linear(hidden, lm_head, Array<T>()));
  }
}

}  // namespace

template <class T>
Site<T> enter_site(const Pass<T>& pass, const Weights& weights, const std::string& parameters, const Array<T>& streams,
                   const std::string& path) {
  const ModelConfig& config = pass.config;
  const MappingOptions options{.norm_eps = config.rms_norm_eps,
                               .norm_eps_inside_sqrt = true,
                               .pre_eps = config.hc_eps,
                               .sinkhorn_eps = config.hc_eps,
                               .iterations = config.hc_sinkhorn_iters};
  Site<T> site;
  site.mapping = mhc_mapping(streams, weights.get<T>(parameters + "fn"), weights.get<T>(parameters + "scale"),
                             weights.get<T>(parameters + "base"), options);
  site.mapping.h_post = pass.stage(path + "mhc.h_post", std::move(site.mapping.h_post));
  site.mapping.h_res = pass.stage(path + "mhc.h_res", std::move(site.mapping.h_res));
  site.collapsed = pass.stage(path + "mhc.aggregate", mhc_aggregate(streams, site.mapping.h_pre));
  return site;
}

template <class T>
ForwardResult<T> forward(const Checkpoint& checkpoint, const ModelInputs& inputs, const Conventions& conventions,
                         Observer<T>& observer) {
  const ModelConfig& config = checkpoint.config;
  const std::vector<Row> rows = rows_of(inputs, config);
  const Pass<T> pass{config, rows, conventions, observer};
  const Weights root(checkpoint, ""), model = root.below("model.");
  Array<T> streams = stream_expand(embedded(pass, model, inputs), config.hc_mult);
  Index selected;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l)
    streams = layer(pass, model.below("language_model.layers." + std::to_string(l) + "."), l, streams, selected);
  const Array<T> contracted = pass.stage("head.contract", contract_mean(streams));
  const Array<T> normed =
      pass.stage("head.norm", rms_norm(contracted, model.get<T>("language_model.norm.weight"), config.rms_norm_eps));
  const Array<T> lm_head = root.get<T>("lm_head.weight");
  ForwardResult<T> result;
  result.logits = pass.stage("head.logits", linear(normed, lm_head, Array<T>()));
  if (inputs.labels)
    result.loss =
        pass.stage("head.loss", mean_loss(pass, result.logits, *inputs.labels, inputs.cu_seqlens.has_value()));
  if (config.num_nextn_predict_layers > 0) run_mtp(pass, model, inputs, normed, lm_head);
  const Shape& batch = inputs.input_ids.shape();
  result.logits.shape = {batch[0], batch[1], config.vocab_size};
  return result;
}

#define ASSAY_INSTANTIATE(T)                                                                       \
  template Site<T> enter_site(const Pass<T>&, const Weights&, const std::string&, const Array<T>&, \
                              const std::string&);                                                 \
  template ForwardResult<T> forward(const Checkpoint&, const ModelInputs&, const Conventions&, Observer<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
