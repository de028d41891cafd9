#include "reference/model/layers.h"

namespace assay::reference {
namespace {

constexpr double kQkNormEps = 1e-6;  // fixed, not a config field (model.md 14)

std::vector<bool> real_tokens(const std::vector<Row>& rows) {
  std::vector<bool> real;
  for (const Row& row : rows) real.insert(real.end(), row.real.begin(), row.real.end());
  return real;
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
Var<T> kda_layer(const Pass<T>& pass, const Weights& attention, const Var<T>& hidden, const std::string& path) {
  using G = Graph<T>;
  using M = Moves<T>;
  Tape<T>& tape = pass.tape;
  const ModelConfig& config = pass.config;
  const std::int64_t heads = config.linear_num_heads, dim = config.linear_head_dim, tokens = hidden->value.dim(0);
  const Shape by_head{tokens, heads, dim};
  const Var<T> h = M::masked(tape, hidden, real_tokens(pass.rows));
  const Index documents = all_documents(pass.rows);
  const auto projected = [&](const Var<T>& x, const std::string& name) {
    return G::linear(tape, x, pass.weight(attention, name + ".weight"));
  };
  const auto convolved = [&](const std::string& name) {
    const Var<T> stored = pass.weight(attention, name + "_conv1d.weight");
    const Var<T> weight = M::reshaped(tape, stored, {stored->value.dim(0), stored->value.dim(2)});
    return M::reshaped(tape, G::kda_conv(tape, projected(h, name + "_proj"), weight, documents), by_head);
  };
  const Var<T> q = G::l2norm(tape, convolved("q"), kQkNormEps), k = G::l2norm(tape, convolved("k"), kQkNormEps);
  const Var<T> v = convolved("v");
  const Var<T> f = M::reshaped(tape, projected(projected(h, "f_a_proj"), "f_b_proj"), by_head);
  const Var<T> g = pass.stage(path + "gate", G::kda_gate(tape, f, pass.weight(attention, "A_log"),
                                                         pass.weight(attention, "dt_bias"), config.linear_lower_bound));
  const Var<T> b = pass.stage(path + "beta_logits", projected(h, "b_proj"));
  const Var<T> o = pass.stage(path + "delta_rule", G::delta_rule(tape, q, k, v, g, G::beta(tape, b), documents));
  const Var<T> z = M::reshaped(tape, projected(projected(h, "g_a_proj"), "g_b_proj"), by_head);
  const Var<T> normed = pass.stage(
      path + "gated_norm", G::gated_rms_norm(tape, o, z, pass.weight(attention, "o_norm.weight"), config.rms_norm_eps));
  return pass.stage(path + "out", projected(M::reshaped(tape, normed, {tokens, heads * dim}), "o_proj"));
}

#define ASSAY_INSTANTIATE(T) \
  template Var<T> kda_layer(const Pass<T>&, const Weights&, const Var<T>&, const std::string&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
