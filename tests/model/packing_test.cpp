// Packed documents, padding and batches are the same tokens at other places.
#include <gtest/gtest.h>

#include "tests/model/compare.h"
#include "tests/model/recorded_case.h"
#include "tests/model/small_checkpoint.h"

namespace assay::reference {
namespace {

using harness::test_folder;

Recorder<Real> precise(const Checkpoint& checkpoint, const ModelInputs& inputs) {
  return record<Real>(checkpoint, inputs, {}, kPreciseBits);
}

Checkpoint small_model(int mtp_layers) {
  nlohmann::json config = small_config();
  config["text_config"]["num_nextn_predict_layers"] = mtp_layers;
  return write_checkpoint(test_folder(), config);
}

std::vector<std::int64_t> joined(const std::vector<std::vector<std::int64_t>>& parts) {
  std::vector<std::int64_t> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(Packing, every_document_is_as_if_it_were_alone) {
  const Checkpoint checkpoint = small_model(1);
  const std::vector<std::vector<std::int64_t>> documents = {seeded_ids(7, 1), seeded_ids(1, 2), seeded_ids(14, 3),
                                                            seeded_ids(5, 4)};
  ModelInputs packed = with_ids(ids_row(joined(documents)));
  packed.cu_seqlens = integers({5}, {0, 7, 8, 22, 27});
  const Recorder<Real> whole = precise(checkpoint, packed);
  std::int64_t first = 0;
  for (const auto& ids : documents) {
    const auto tokens = static_cast<std::int64_t>(ids.size());
    expect_same_tokens(precise(checkpoint, with_ids(ids_row(ids))), whole,
                       {.first = first, .row_length = 27, .tokens = tokens});
    first += tokens;
  }
}

TEST(Packing, documents_do_matter) {
  const Checkpoint checkpoint = small_model(0);
  ModelInputs packed = with_ids(ids_row(seeded_ids(20, 5)));
  const Recorder<Real> one = precise(checkpoint, packed);
  packed.cu_seqlens = integers({3}, {0, 9, 20});
  const Recorder<Real> two = precise(checkpoint, packed);
  const Array<Real>&a = one.stages.at("head.logits"), &b = two.stages.at("head.logits");
  const std::int64_t vocabulary = a.dim(1);
  expect_same(rows(b.data, vocabulary, 0, 9), rows(a.data, vocabulary, 0, 9), "the first document");
  for (std::int64_t t = 9; t < 20; ++t) {
    double off = 0.0;
    for (std::int64_t c = 0; c < vocabulary; ++c) off += std::abs(midpoint(a.at(t, c)) - midpoint(b.at(t, c)));
    EXPECT_GT(off, 1e-6) << "token " << t;
  }
}

TEST(Packing, T79_the_last_token_of_a_document_has_no_label) {
  const Checkpoint checkpoint = small_model(0);
  const std::vector<std::int64_t> a = {10, 11, 12}, b = {20, 21};
  const auto loss = [&](const std::vector<std::int64_t>& ids, const std::vector<std::int64_t>& cu_seqlens) {
    ModelInputs inputs = with_ids(ids_row(ids));
    inputs.labels = inputs.input_ids;
    if (!cu_seqlens.empty()) inputs.cu_seqlens = integers({static_cast<std::int64_t>(cu_seqlens.size())}, cu_seqlens);
    return precise(checkpoint, inputs).stages.at("head.loss")[0];
  };
  const ContextScope scope([] {
    Context wanted;
    wanted.bits = kPreciseBits;
    return wanted;
  }());
  const Real expected = (2 * loss(a, {}) + 1 * loss(b, {})) / 3;
  expect_same({loss(joined({a, b}), {0, 3, 5})}, {expected}, "labels 11, 12, ignore, 21, ignore");
}

TEST(Padding, left_padding_changes_nothing_for_real_tokens) {
  const Checkpoint checkpoint = small_model(1);
  const std::vector<std::int64_t> ids = seeded_ids(17, 6);
  const Recorder<Real> alone = precise(checkpoint, with_ids(ids_row(ids)));
  for (const std::int64_t pad : {1, 3, 6}) {
    const auto count = static_cast<std::size_t>(pad);
    ModelInputs padded = with_ids(ids_row(joined({std::vector<std::int64_t>(count, 0), ids})));
    padded.attention_mask = ids_row(joined({std::vector<std::int64_t>(count, 0), std::vector<std::int64_t>(17, 1)}));
    for (const bool uniformly : {false, true}) {
      const Recorder<Real> run =
          record<Real>(checkpoint, padded, {.empty_row_attends_uniformly = uniformly}, kPreciseBits);
      expect_same_tokens(alone, run, {.first = pad, .row_length = 17 + pad, .tokens = 17});
    }
  }
}

TEST(Padding, right_padding_changes_nothing_for_real_tokens) {
  const Checkpoint checkpoint = small_model(1);
  const std::vector<std::int64_t> ids = seeded_ids(17, 6), none(4, 0);
  ModelInputs padded = with_ids(ids_row(joined({ids, none})));
  padded.attention_mask = ids_row(joined({std::vector<std::int64_t>(17, 1), none}));
  expect_same_tokens(precise(checkpoint, with_ids(ids_row(ids))), precise(checkpoint, padded),
                     {.row_length = 21, .tokens = 17});
}

TEST(Padding, the_conventions_differ_in_padding_rows_only) {
  const Checkpoint checkpoint = small_model(0);
  ModelInputs padded = with_ids(ids_row(joined({{0, 0}, seeded_ids(5, 7)})));
  padded.attention_mask = ids_row({0, 0, 1, 1, 1, 1, 1});
  const auto first_weights = [&](bool uniformly) {
    return record<Real>(checkpoint, padded, {.empty_row_attends_uniformly = uniformly}, kPreciseBits)
        .stages.at("layers.2.dsa.attention_weights[0]");
  };
  const Array<Real> zero = first_weights(false), uniform = first_weights(true);
  for (std::int64_t s = 0; s < 7; ++s) {
    EXPECT_EQ(midpoint(zero.at(0, 0, s)), 0.0);
    EXPECT_NEAR(midpoint(uniform.at(0, 0, s)), 1.0 / 7.0, 1e-15);
  }
}

TEST(Batch, every_row_is_as_if_it_were_alone) {
  const Checkpoint checkpoint = small_model(1);
  const std::vector<std::int64_t> first = seeded_ids(11, 8), second = seeded_ids(11, 9);
  const Recorder<Real> both = precise(checkpoint, with_ids(integers({2, 11}, joined({first, second}))));
  expect_same_tokens(precise(checkpoint, with_ids(ids_row(first))), both, {.row = 0, .row_length = 11, .tokens = 11});
  expect_same_tokens(precise(checkpoint, with_ids(ids_row(second))), both, {.row = 1, .row_length = 11, .tokens = 11});
}

}  // namespace
}  // namespace assay::reference
