#include "reference/model/layers.h"
#include "reference/ops/delta_rule.h"
#include "reference/ops/kda.h"
#include "reference/ops/linear.h"
#include "reference/ops/norm.h"

namespace assay::reference {
namespace {

constexpr double kQkNormEps = 1e-6;  // fixed, not a config field (model.md 14)

template <class T>
Array<T> without_padding(const std::vector<Row>& rows, Array<T> h) {
  const std::int64_t width = h.dim(1);
  for (const Row& row : rows)
    for (std::int64_t t = 0; t < row.length; ++t)
      if (!row.real[static_cast<std::size_t>(t)])
        for (std::int64_t c = 0; c < width; ++c) h.at(row.begin + t, c) = T(0.0);
  return h;
}

/// Documents of the whole flattened batch.
Index all_documents(const std::vector<Row>& rows) {
  Index documents;
  documents.data = {0};
  for (const Row& row : rows)
    for (std::int64_t d = 1; d < row.documents.size(); ++d) documents.data.push_back(row.begin + row.documents[d]);
  documents.shape = {static_cast<std::int64_t>(documents.data.size())};
  return documents;
}

}  // namespace

template <class T>
Array<T> kda_layer(const Pass<T>& pass, const Weights& attention, const Array<T>& hidden, const std::string& path) {
  const ModelConfig& config = pass.config;
  const std::int64_t heads = config.linear_num_heads, dim = config.linear_head_dim, tokens = hidden.dim(0);
  const Shape by_head{tokens, heads, dim};
  const Array<T> h = without_padding(pass.rows, hidden);
  const Index documents = all_documents(pass.rows);
  const auto projected = [&](const Array<T>& x, const std::string& name) {
    return linear(x, attention.get<T>(name + ".weight"), Array<T>());
  };
  const auto convolved = [&](const std::string& name) {
    Array<T> weight = attention.get<T>(name + "_conv1d.weight");
    weight.shape = {weight.dim(0), weight.dim(2)};
    return kda_conv(projected(h, name + "_proj"), weight, documents, Array<T>()).reshaped(by_head);
  };
  const Array<T> q = l2norm(convolved("q"), kQkNormEps), k = l2norm(convolved("k"), kQkNormEps), v = convolved("v");
  Array<T> f = projected(projected(h, "f_a_proj"), "f_b_proj").reshaped(by_head);
  const Array<T> g = pass.stage(
      path + "gate", kda_gate(f, attention.get<T>("A_log"), attention.get<T>("dt_bias"), config.linear_lower_bound));
  const Array<T> b = pass.stage(path + "beta_logits", projected(h, "b_proj"));
  const DeltaRule<T> rule = delta_rule(q, k, v, g, beta(b), Array<T>(), documents, std::nullopt);
  const Array<T> o = pass.stage(path + "delta_rule", rule.o);
  const Array<T> z = projected(projected(h, "g_a_proj"), "g_b_proj").reshaped(by_head);
  const Array<T> normed =
      pass.stage(path + "gated_norm", gated_rms_norm(o, z, attention.get<T>("o_norm.weight"), config.rms_norm_eps));
  return pass.stage(path + "out", projected(normed.reshaped({tokens, heads * dim}), "o_proj"));
}

#define ASSAY_INSTANTIATE(T) \
  template Array<T> kda_layer(const Pass<T>&, const Weights&, const Array<T>&, const std::string&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
