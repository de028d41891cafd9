// The backward of the whole model: against the float64 gradients of an independent implementation, and by its laws.
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "harness/gradients.h"
#include "harness/prove.h"
#include "reference/train/optimizer.h"
#include "tests/model/compare.h"
#include "tests/model/peer_case.h"
#include "tests/model/small_checkpoint.h"

namespace assay::harness {
namespace {

using reference::gradients;
using reference::LossOptions;
using reference::ModelGradients;
using reference::ModelInputs;
using reference::Observer;

/// Norm of the difference over norm of the truth that two float64 implementations may be apart.
constexpr double kApart = 1e-10;

class PeerGradients : public testing::TestWithParam<const char*> {
 protected:
  static std::filesystem::path folder() { return peer_folder() / GetParam(); }
};

#define ASSAY_NEED_GRADIENTS ASSAY_NEED_PEER(std::filesystem::path(GetParam()) / "grads_f64.safetensors")

ModelGradients<double> in_double(const RecordedCase& recorded) {
  Observer<double> nobody;
  return gradients(recorded.checkpoint, recorded.trace.inputs, recorded.trace.conventions, LossOptions{}, nobody);
}

TEST_P(PeerGradients, every_gradient_is_matched_within_its_limit) {
  ASSAY_NEED_GRADIENTS;
  const RecordedCase recorded = open_case(folder());
  VerifySettings settings;
  const std::vector<Check> checks =
      verify_gradients(recorded.checkpoint, recorded.trace, folder() / "grads_f64.safetensors",
                       read_gradient_names(names_file(), recorded.checkpoint), settings);
  double worst = 0.0, share = 0.0;
  std::size_t judged = 0;
  for (const Check& check : checks) {
    if (check.verdict == Verdict::kSkipped) {
      EXPECT_EQ(check.reason.rfind("no gradient: ", 0), 0U) << line_of(check);
      continue;
    }
    ++judged;
    EXPECT_EQ(check.verdict, Verdict::kPass) << line_of(check);
    EXPECT_EQ(check.over_limit, 0) << line_of(check);
    if (check.is_set) continue;
    EXPECT_LE(check.relative_error, kApart) << line_of(check);
    EXPECT_GT(check.elements, 0) << line_of(check);
    worst = std::max(worst, check.relative_error);
    share = std::max(share, check.share);
  }
  RecordProperty("worst_relative_deviation", fmt::format("{:.2e}", worst));
  RecordProperty("worst_share_of_limit", fmt::format("{:.3f}", share));
  // Every recorded gradient was judged, and the sets without gradient are equal.
  ASSERT_FALSE(checks.empty());
  EXPECT_EQ(judged, TensorFile::open(folder() / "grads_f64.safetensors").tensors().size() + 1);
  EXPECT_EQ(checks.back().stage, "parameters without gradient");
  EXPECT_EQ(checks.back().rows_equal, checks.back().elements) << checks.back().reason;
}

TEST_P(PeerGradients, indexer_and_choice_bias_have_no_gradient) {
  ASSAY_NEED_GRADIENTS;
  const RecordedCase recorded = open_case(folder());
  const ModelGradients<double> found = in_double(recorded);
  const std::set<std::string> none(found.none.begin(), found.none.end());
  const ModelConfig& config = recorded.checkpoint.config;
  std::set<std::string> expected;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const auto i = static_cast<std::size_t>(l);
    const std::string layer = "model.language_model.layers." + std::to_string(l) + ".";
    if (config.mlp_layer_types[i] != MlpKind::kDense) expected.insert(layer + "mlp.gate.e_score_correction_bias");
    if (config.layer_types[i] == AttentionKind::kKda || config.indexer_types[i] != IndexerKind::kFull) continue;
    for (const char* name : {"index_kpool_compress_ape", "index_kpool_compress_gate", "k_norm.bias", "k_norm.weight",
                             "weights_proj.weight", "wk.weight", "wq_b.weight"})
      expected.insert(layer + "self_attn.indexer." + name);
  }
  for (const std::string& name : expected) EXPECT_TRUE(none.count(name)) << name;
  // Nothing else but experts that no token chose and a tower without images.
  for (const std::string& name : none) {
    if (expected.count(name) || name.find(".mlp.experts.") != std::string::npos) continue;
    EXPECT_TRUE(name.rfind("model.visual.", 0) == 0 && !recorded.trace.inputs.pixel_values) << name;
  }
  EXPECT_EQ(none.size() + found.gradients.size(), recorded.checkpoint.file.tensors().size());
}

TEST_P(PeerGradients, the_padding_row_of_the_embedding_is_zero) {
  ASSAY_NEED_GRADIENTS;
  const RecordedCase recorded = open_case(folder());
  const reference::Array<double> table = in_double(recorded).gradients.at("model.language_model.embed_tokens.weight");
  ASSERT_TRUE(recorded.checkpoint.config.pad_token_id.has_value());
  const std::int64_t padding = *recorded.checkpoint.config.pad_token_id;
  for (std::int64_t c = 0; c < table.dim(1); ++c) EXPECT_EQ(table.at(padding, c), 0.0);
}

TEST_P(PeerGradients, do_not_depend_on_the_number_of_threads) {
  ASSAY_NEED_GRADIENTS;
  const RecordedCase recorded = open_case(folder());
  std::map<std::string, std::vector<double>> first;
  for (const int count : {1, 2, 5}) {
    const Jobs jobs(count);
    std::map<std::string, std::vector<double>> all;
    for (auto& [name, gradient] : in_double(recorded).gradients) all[name] = gradient.data;
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << count << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Peer, PeerGradients,
                         testing::Values("kda_dsa", "shared_index_groups", "vision", "long_chunks"),
                         [](const auto& checkpoint) { return std::string(checkpoint.param); });

}  // namespace
}  // namespace assay::harness

namespace assay::reference {
namespace {

using harness::test_folder;

nlohmann::json config_with_mtp(int depth) {
  nlohmann::json config = small_config();
  config["text_config"]["num_nextn_predict_layers"] = depth;
  return config;
}

std::vector<std::int64_t> joined(const std::vector<std::vector<std::int64_t>>& parts) {
  std::vector<std::int64_t> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

ModelInputs labelled(const std::vector<std::int64_t>& ids) {
  ModelInputs inputs = with_ids(ids_row(ids));
  inputs.labels = inputs.input_ids;
  return inputs;
}

ModelInputs packed_documents(const std::vector<std::vector<std::int64_t>>& documents) {
  ModelInputs inputs = labelled(joined(documents));
  std::vector<std::int64_t> edges = {0};
  for (const auto& ids : documents) edges.push_back(edges.back() + static_cast<std::int64_t>(ids.size()));
  inputs.cu_seqlens = integers({static_cast<std::int64_t>(edges.size())}, edges);
  return inputs;
}

ModelInputs left_padded(const std::vector<std::int64_t>& ids, std::size_t padding) {
  const std::vector<std::int64_t> none(padding, 0);
  ModelInputs inputs = labelled(joined({none, ids}));
  inputs.attention_mask = ids_row(joined({none, std::vector<std::int64_t>(ids.size(), 1)}));
  // The first token is nobody's label: what stands before it is padding.
  std::vector<std::int64_t> labels = joined({std::vector<std::int64_t>(padding, -100), ids});
  labels[padding] = -100;
  inputs.labels = ids_row(labels);
  return inputs;
}

Context precise_context() {
  Context result;
  result.bits = kPreciseBits;
  return result;
}

template <class T>
ModelGradients<T> gradients_of(const Checkpoint& checkpoint, const ModelInputs& inputs, const LossOptions& losses = {},
                               const Conventions& conventions = {}) {
  Observer<T> nobody;
  return gradients<T>(checkpoint, inputs, conventions, losses, nobody);
}

/// Every gradient and the loss are numbers, and something has a gradient.
void expect_finite(const ModelGradients<double>& found, const std::string& what) {
  EXPECT_TRUE(std::isfinite(found.forward.total->value[0])) << what;
  double largest = 0.0;
  for (const auto& [name, gradient] : found.gradients) {
    std::int64_t bad = 0;
    for (const double value : gradient.data) {
      bad += std::isfinite(value) ? 0 : 1;
      largest = std::max(largest, std::abs(value));
    }
    EXPECT_EQ(bad, 0) << what << ": " << name;
  }
  EXPECT_GT(largest, 0.0) << what;
}

constexpr LossOptions kAllLosses{.aux_loss_coef = 0.01, .mtp_scale = 0.3};

TEST(ModelGradients, padded_and_packed_inputs_give_numbers) {
  const Checkpoint checkpoint = write_checkpoint(test_folder(), config_with_mtp(2));
  for (const std::size_t padding : {1, 3, 16})
    for (const bool uniformly : {false, true})
      expect_finite(gradients_of<double>(checkpoint, left_padded(seeded_ids(9, 1), padding), kAllLosses,
                                         {.empty_row_attends_uniformly = uniformly}),
                    "left padding of " + std::to_string(padding));
  expect_finite(gradients_of<double>(checkpoint,
                                     packed_documents({seeded_ids(1, 2), seeded_ids(7, 3), seeded_ids(1, 4),
                                                       seeded_ids(2, 5), seeded_ids(12, 6)}),
                                     kAllLosses),
                "packed documents");
}

TEST(ModelGradients, saturated_weights_give_numbers) {
  // Logits, gates and scores so large that sigmoids and softmaxes are 0 or 1 in double.
  for (const double factor : {1e3, 1e6})
    for (const std::string part : {"mlp.gate.weight", "f_b_proj", "b_proj", "g_b_proj", "hc_", "indexer", "q_b_proj",
                                   "lm_head", "A_log", "mlp."}) {
      const Checkpoint checkpoint = write_checkpoint(test_folder() / part, small_config(), [&](Weights64& tensors) {
        for (auto& [name, tensor] : tensors) {
          if (name.find(part) == std::string::npos) continue;
          std::vector<double> values = tensor.reals();
          for (double& value : values) value *= part == "A_log" ? 10.0 : factor;
          tensor = Tensor::from_reals(tensor.dtype(), tensor.shape(), values);
        }
      });
      expect_finite(gradients_of<double>(checkpoint, labelled(seeded_ids(14, 7))), part + " scaled");
    }
}

/// factor * gradient added to a sum; a tensor without gradient adds nothing.
void add_to(Tensors<Real>& sum, const Tensors<Real>& gradient, const Real& factor) {
  for (const auto& [name, values] : gradient) {
    Array<Real>& to = sum.try_emplace(name, Array<Real>(values.shape)).first->second;
    for (std::int64_t i = 0; i < values.size(); ++i) to[i] += factor * values[i];
  }
}

void expect_same_gradients(const Tensors<Real>& found, const Tensors<Real>& expected) {
  EXPECT_GT(found.size(), 50u);
  for (const auto& [name, values] : expected) {
    ASSERT_TRUE(found.count(name)) << name;
    expect_same(found.at(name).data, values.data, name);
  }
  EXPECT_EQ(found.size(), expected.size());
}

TEST(ModelGradients, those_of_packed_documents_are_the_sum_of_each_alone) {
  const Checkpoint checkpoint = write_checkpoint(test_folder(), small_config());
  const ContextScope scope(precise_context());
  const std::vector<std::vector<std::int64_t>> documents = {seeded_ids(7, 1), seeded_ids(14, 3), seeded_ids(5, 4)};
  const Real labels(6 + 13 + 4);  // the mean is over these
  Tensors<Real> sum;
  for (const auto& ids : documents)
    add_to(sum, gradients_of<Real>(checkpoint, labelled(ids)).gradients,
           Real(static_cast<double>(ids.size() - 1)) / labels);
  expect_same_gradients(gradients_of<Real>(checkpoint, packed_documents(documents)).gradients, sum);
}

TEST(ModelGradients, left_padding_changes_none) {
  const Checkpoint checkpoint = write_checkpoint(test_folder(), config_with_mtp(1));
  const ContextScope scope(precise_context());
  const std::vector<std::int64_t> ids = seeded_ids(11, 6);
  const Tensors<Real> alone = gradients_of<Real>(checkpoint, labelled(ids)).gradients;
  for (const bool uniformly : {false, true}) {
    Tensors<Real> padded =
        gradients_of<Real>(checkpoint, left_padded(ids, 4), LossOptions{}, {.empty_row_attends_uniformly = uniformly})
            .gradients;
    // Padding tokens run through the experts as well, but carry no gradient.
    for (auto tensor = padded.begin(); tensor != padded.end();) {
      bool zero = true;
      for (const Real& value : tensor->second.data) zero = zero && value == 0;
      tensor = zero && !alone.count(tensor->first) ? padded.erase(tensor) : std::next(tensor);
    }
    expect_same_gradients(padded, alone);
  }
}

TEST(ModelGradients, of_all_losses_are_the_sum_of_their_parts) {
  const Checkpoint checkpoint = write_checkpoint(test_folder(), config_with_mtp(2));
  const ContextScope scope(precise_context());
  const ModelInputs inputs = packed_documents({seeded_ids(9, 1), seeded_ids(6, 2)});
  const auto run = [&](double aux, double mtp) {
    return gradients_of<Real>(checkpoint, inputs, {.aux_loss_coef = aux, .mtp_scale = mtp});
  };
  const ModelGradients<Real> plain = run(0, 0), aux = run(0.5, 0), mtp = run(0, 0.25), all = run(0.125, 0.5);
  // all = plain + (aux - plain) / 4 + 2 (mtp - plain)
  Tensors<Real> sum;
  add_to(sum, plain.gradients, Real(1 - 0.25 - 2));
  add_to(sum, aux.gradients, Real(0.25));
  add_to(sum, mtp.gradients, Real(2));
  expect_same_gradients(all.gradients, sum);

  ASSERT_EQ(all.forward.mtp_losses.size(), 2u);
  ASSERT_EQ(all.forward.aux_loss.size(), 1);
  const Real total = all.forward.loss[0] + Real(0.125) * all.forward.aux_loss[0] +
                     Real(0.25) * (all.forward.mtp_losses[0][0] + all.forward.mtp_losses[1][0]);
  expect_same(all.forward.total->value.data, {total}, "total");
  EXPECT_EQ(plain.forward.aux_loss.size(), 0);
  EXPECT_TRUE(plain.forward.mtp_losses.empty());
  // MTP parameters get a gradient from the MTP loss only; the router's weight gets one from both.
  const std::string projection = "model.language_model.layers.5.eh_proj.weight";
  EXPECT_TRUE(mtp.gradients.count(projection));
  EXPECT_FALSE(aux.gradients.count(projection));
}

TEST(ModelGradients, of_all_losses_are_proved_by_central_differences) {
  nlohmann::json config = config_with_mtp(1);
  nlohmann::json& text = config["text_config"];
  text["num_hidden_layers"] = 2;
  for (const auto& [field, kinds] : std::map<std::string, std::vector<std::string>>{
           {"layer_types", {"linear_attention", "deepseek_sparse_attention"}},
           {"mlp_layer_types", {"dense", "sparse"}},
           {"indexer_types", {"full", "full"}}})
    text[field] = kinds;
  const Checkpoint checkpoint = write_checkpoint(test_folder(), config);
  harness::ProofSettings settings;
  settings.losses = kAllLosses;
  const ModelInputs inputs = packed_documents({seeded_ids(7, 1), seeded_ids(4, 2)});
  const std::vector<harness::ProvedGradient> proved = harness::prove_model(checkpoint, inputs, Conventions{}, settings);
  std::set<std::string> names;
  for (const harness::ProvedGradient& one : proved) {
    EXPECT_TRUE(one.passed) << one.name << ": " << one.reason;
    EXPECT_LE(one.deviation, 1e-20) << one.name;
    names.insert(one.name);
  }
  const ContextScope scope(precise_context());
  for (const auto& [name, gradient] : gradients_of<Real>(checkpoint, inputs, kAllLosses).gradients)
    EXPECT_TRUE(names.count(name)) << name;
  EXPECT_TRUE(names.count("model.language_model.layers.2.eh_proj.weight"));
}

}  // namespace
}  // namespace assay::reference
