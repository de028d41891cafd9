// MTP layers: a synthetic checkpoint, since public records stop at the trunk. Sources: shared/spec/model.md 11,
// megatron.md 1.8 and 7; T77 of shared/cases/public_reports.md.
#include <gtest/gtest.h>

#include "reference/linear_algebra.h"
#include "reference/model/layers.h"
#include "reference/ops/norm.h"
#include "tests/model/compare.h"
#include "tests/model/recorded_case.h"
#include "tests/model/small_checkpoint.h"

namespace assay::reference {
namespace {

using harness::test_folder;

const std::string kLayer = "model.language_model.layers.4.";

nlohmann::json config_with_mtp(int depth) {
  nlohmann::json config = small_config();
  config["text_config"]["num_nextn_predict_layers"] = depth;
  return config;
}

Context precise_context() {
  Context result;
  result.bits = kPreciseBits;
  return result;
}

/// The given columns of `x W^T`.
Array<Real> half_product(const Array<Real>& x, const Array<Real>& weight, std::int64_t first_column) {
  const std::int64_t width = x.dim(1);
  Array<Real> part({weight.dim(0), width});
  for (std::int64_t o = 0; o < weight.dim(0); ++o)
    for (std::int64_t i = 0; i < width; ++i) part.at(o, i) = weight.at(o, first_column + i);
  return matmul_nt(x, part);
}

std::vector<Real> sum(const std::vector<Real>& a, const std::vector<Real>& b) {
  std::vector<Real> result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(a[i] + b[i]);
  return result;
}

/// x = eh_proj [enorm(embedding of the next token); hnorm(hidden)], the embedding half first.
Array<Real> combined(const Weights& model, const std::string& layer, const std::vector<std::int64_t>& next,
                     const Array<Real>& hidden, double eps) {
  const Array<Real> table = model.get<Real>("language_model.embed_tokens.weight");
  const std::int64_t width = hidden.dim(1);
  Array<Real> embedding(hidden.shape);
  for (std::size_t t = 0; t < next.size(); ++t)
    for (std::int64_t c = 0; c < width; ++c) embedding.at(static_cast<std::int64_t>(t), c) = table.at(next[t], c);
  const Weights weights = model.below(layer);
  const Array<Real> e = rms_norm(embedding, weights.get<Real>("enorm.weight"), eps);
  const Array<Real> h = rms_norm(hidden, weights.get<Real>("hnorm.weight"), eps);
  const Array<Real> projection = weights.get<Real>("eh_proj.weight");
  return Array<Real>(hidden.shape, sum(half_product(e, projection, 0).data, half_product(h, projection, width).data));
}

TEST(Mtp, every_depth_starts_from_the_next_token_and_the_normed_hidden) {
  const Checkpoint checkpoint = write_checkpoint(test_folder(), config_with_mtp(2));
  const std::vector<std::int64_t> ids = {5, 9, 3, 17, 8, 21, 2, 11};
  ModelInputs inputs = with_ids(ids_row(ids));
  inputs.cu_seqlens = integers({3}, {0, 5, 8});
  const Recorder<Real> run = record<Real>(checkpoint, inputs, {}, kPreciseBits);
  const ContextScope scope(precise_context());
  const Weights root(checkpoint, ""), model = root.below("model.");
  // Rolled by one more per depth, within each document, token 0 at its end.
  const std::vector<std::vector<std::int64_t>> next = {{9, 3, 17, 8, 0, 2, 11, 0}, {3, 17, 8, 0, 0, 11, 0, 0}};
  const std::vector<std::string> hidden = {"head.norm", "mtp.0.norm"};
  for (std::size_t depth = 0; depth < 2; ++depth) {
    const std::string path = "mtp." + std::to_string(depth) + ".";
    const std::string layer = "language_model.layers." + std::to_string(4 + depth) + ".";
    const Array<Real> x = combined(model, layer, next[depth], run.stages.at(hidden[depth]), 1e-5);
    expect_same(run.stages.at(path + "eh_proj").data, x.data, path + "eh_proj");
    // A plain residual around attention and experts, no streams.
    const std::vector<Real> x2 =
        sum(sum(x.data, run.stages.at(path + "dsa.out").data), run.stages.at(path + "ffn.out").data);
    const Array<Real> normed =
        rms_norm(Array<Real>(x.shape, x2), model.get<Real>(layer + "shared_head.norm.weight"), 1e-5);
    expect_same(run.stages.at(path + "norm").data, normed.data, path + "norm");
    expect_same(run.stages.at(path + "logits").data, matmul_nt(normed, root.get<Real>("lm_head.weight")).data,
                path + "logits");
  }
}

/// eh_proj of one token through mtp_layer with width 2: embedding (1, 0), hidden (0, 2).
std::vector<double> t77(const std::filesystem::path& folder, const std::vector<double>& projection) {
  nlohmann::json config = config_with_mtp(1);
  config["text_config"]["hidden_size"] = 2;
  const Checkpoint checkpoint = write_checkpoint(folder, config, [&](Weights64& tensors) {
    for (const char* norm : {"enorm.weight", "hnorm.weight"})
      tensors[kLayer + norm] = Tensor::from_reals(DType::kF32, {2}, std::vector<double>{1, 1});
    tensors[kLayer + "eh_proj.weight"] = Tensor::from_reals(DType::kF32, {2, 4}, projection);
  });
  Recorder<Ball> recorder;
  const std::vector<Row> token = rows_of(with_ids(ids_row({1})), checkpoint.config);
  Tape<Ball> tape(false);
  const Pass<Ball> pass{checkpoint.config, token, Conventions{}, recorder, tape};
  mtp_layer(pass, Weights(checkpoint, kLayer), tape.constant(Array<Ball>({1, 2}, {Ball(1.0), Ball(0.0)})),
            tape.constant(Array<Ball>({1, 2}, {Ball(0.0), Ball(2.0)})), "mtp.0.");
  const Array<Ball>& x = recorder.stages.at("mtp.0.eh_proj");
  return {midpoint(x[0]), midpoint(x[1])};
}

TEST(Mtp, T77_the_embedding_half_comes_first) {
  const std::vector<double> right = t77(test_folder() / "right", {1, 0, 0, 0, 0, 1, 0, 0});  // [I | 0]
  EXPECT_NEAR(right[0], 1.41419942045, 5e-12);
  EXPECT_EQ(right[1], 0.0);
  // Halves exchanged.
  const std::vector<double> wrong = t77(test_folder() / "wrong", {0, 0, 1, 0, 0, 0, 0, 1});
  EXPECT_EQ(wrong[0], 0.0);
  EXPECT_NEAR(wrong[1], 1.41421002685, 5e-12);
}

Checkpoint checkpoint_with_streams(const std::filesystem::path& folder) {
  return write_checkpoint(folder, config_with_mtp(1), [](Weights64& tensors) {
    // The connections of the MTP layer: those of trunk layer 0.
    for (const char* site : {"hc_attn_", "hc_ffn_"})
      for (const char* part : {"fn", "base", "scale"})
        tensors[kLayer + site + part] = tensors.at("model.language_model.layers.0." + std::string(site) + part);
  });
}

Array<Real> seeded_tokens(Shape shape, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Array<Real> result(std::move(shape));
  for (Real& value : result.data) value = static_cast<double>(random() >> 11) * 0x1p-52 - 1.0;
  return result;
}

TEST(MtpWithStreams, runs_with_its_own_connections) {
  const Checkpoint checkpoint = checkpoint_with_streams(test_folder());
  const ContextScope scope(precise_context());
  Recorder<Real> recorder;
  const std::vector<Row> tokens = rows_of(with_ids(ids_row(seeded_ids(9, 1))), checkpoint.config);
  Tape<Real> tape(false);
  const Pass<Real> pass{checkpoint.config, tokens, Conventions{}, recorder, tape};
  const Array<Real> embedding = seeded_tokens({9, 8}, 2), streams = seeded_tokens({9, 4, 8}, 3);
  const Weights layer(checkpoint, kLayer);
  const Array<Real> out =
      mtp_layer_with_streams(pass, layer, tape.constant(embedding), tape.constant(streams), "mtp.0.")->value;
  EXPECT_EQ(out.shape, (Shape{9, 4, 8}));
  expect_same(recorder.stages.at("mtp.0.streams").data, out.data, "the last stage");
  // in_j = e_proj enorm(e) + h_proj hnorm(stream j), the norm taken per stream.
  const Array<Real> projection = layer.get<Real>("eh_proj.weight");
  const Array<Real> e = half_product(rms_norm(embedding, layer.get<Real>("enorm.weight"), 1e-5), projection, 0);
  for (std::int64_t t = 0; t < 9; ++t)
    for (std::int64_t j = 0; j < 4; ++j) {
      const Array<Real> one({1, 8}, std::vector<Real>(streams.row(t * 4 + j, 8), streams.row(t * 4 + j, 8) + 8));
      const Array<Real> h = half_product(rms_norm(one, layer.get<Real>("hnorm.weight"), 1e-5), projection, 8);
      const std::vector<Real> expected = sum(rows(e.data, 8, t, t + 1), h.data);
      expect_same(rows(recorder.stages.at("mtp.0.eh_proj").data, 8, t * 4 + j, t * 4 + j + 1), expected, "eh_proj");
    }
  // The connections are those of a trunk site on the same streams.
  Recorder<Real> site;
  const Pass<Real> site_pass{checkpoint.config, tokens, Conventions{}, site, tape};
  enter_site(site_pass, Weights(checkpoint, "model.language_model.layers.0."), "hc_attn_",
             tape.constant(recorder.stages.at("mtp.0.eh_proj")), "site.");
  for (const char* stage : {"mhc.h_post", "mhc.h_res", "mhc.aggregate"})
    expect_same(recorder.stages.at(std::string("mtp.0.attention.") + stage).data,
                site.stages.at(std::string("site.") + stage).data, stage);
}

TEST(MtpWithStreams, with_trivial_connections_every_stream_is_the_plain_layer) {
  const Checkpoint checkpoint = checkpoint_with_streams(test_folder());
  const ContextScope scope(precise_context());
  const std::vector<Row> tokens = rows_of(with_ids(ids_row(seeded_ids(9, 4))), checkpoint.config);
  const Array<Real> embedding = seeded_tokens({9, 8}, 5), hidden = seeded_tokens({9, 8}, 6);
  const Weights layer(checkpoint, kLayer);

  Recorder<Real> plain;
  Tape<Real> tape(false);
  const Pass<Real> plain_pass{checkpoint.config, tokens, Conventions{}, plain, tape};
  mtp_layer(plain_pass, layer, tape.constant(embedding), tape.constant(hidden), "mtp.0.");

  // Post 1, comb the identity, the collapsed vector what the plain layer's sublayer reads.
  const std::vector<Real> x = plain.stages.at("mtp.0.eh_proj").data;
  const std::vector<Real> x1 = sum(x, plain.stages.at("mtp.0.dsa.out").data);
  Recorder<Real> forced([&](const std::string& stage, Array<Real>& value) {
    if (stage.find("h_post") != std::string::npos)
      for (Real& v : value.data) v = 1;
    if (stage.find("h_res") != std::string::npos)
      for (std::int64_t i = 0; i < value.size(); ++i) value[i] = i % 16 % 5 == 0 ? 1 : 0;
    if (stage == "mtp.0.attention.mhc.aggregate") value.data = x;
    if (stage == "mtp.0.ffn.mhc.aggregate") value.data = x1;
  });
  const Pass<Real> forced_pass{checkpoint.config, tokens, Conventions{}, forced, tape};
  Array<Real> streams({9, 4, 8});
  for (std::int64_t t = 0; t < 9; ++t)
    for (std::int64_t j = 0; j < 4; ++j)
      for (std::int64_t c = 0; c < 8; ++c) streams.at(t, j, c) = hidden.at(t, c);
  const Array<Real> out =
      mtp_layer_with_streams(forced_pass, layer, tape.constant(embedding), tape.constant(streams), "mtp.0.")->value;
  expect_same(rms_norm(out, layer.get<Real>("shared_head.norm.weight"), 1e-5).data,
              stream_expand(plain.stages.at("mtp.0.norm"), 4).data, "the hidden after shared_head.norm");
}

}  // namespace
}  // namespace assay::reference
