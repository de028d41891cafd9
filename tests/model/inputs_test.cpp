// Refused inputs: the message names the input.
#include <gtest/gtest.h>

#include "tests/model/recorded_case.h"
#include "tests/model/recorder.h"
#include "tests/model/small_checkpoint.h"

namespace assay::reference {
namespace {

using harness::test_folder;

/// The message of the InputError that a pass throws; empty if it throws none.
std::string refusal(const Checkpoint& checkpoint, const ModelInputs& inputs) {
  try {
    record<double>(checkpoint, inputs);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

#define ASSAY_EXPECT_REFUSED(inputs, name, found)                                                 \
  {                                                                                               \
    const std::string message = refusal(checkpoint, inputs);                                      \
    EXPECT_EQ(message.rfind(name, 0), 0U) << "not about " << (name) << ": \"" << message << "\""; \
    EXPECT_NE(message.find(found), std::string::npos) << message;                                 \
  }

ModelInputs five_tokens() { return with_ids(ids_row({1, 2, 3, 4, 5})); }

TEST(RefusedInputs, token_ids) {
  const Checkpoint checkpoint = write_checkpoint(test_folder(), small_config());
  EXPECT_EQ(refusal(checkpoint, five_tokens()), "");
  ASSAY_EXPECT_REFUSED(with_ids(ids_row({1, 32, 3})), "input_ids element 1", "32");
  ASSAY_EXPECT_REFUSED(with_ids(ids_row({1, 2, -1})), "input_ids element 2", "-1");
  ASSAY_EXPECT_REFUSED(with_ids(integers({3}, {1, 2, 3})), "input_ids", "[3]");
  ASSAY_EXPECT_REFUSED((with_ids(Tensor::from_reals(DType::kF32, {1, 2}, std::vector<double>{1, 2}))), "input_ids",
                       "F32");
}

TEST(RefusedInputs, attention_mask) {
  const Checkpoint checkpoint = write_checkpoint(test_folder(), small_config());
  ModelInputs inputs = five_tokens();
  inputs.attention_mask = ids_row({1, 1, 0, 1, 1});
  ASSAY_EXPECT_REFUSED(inputs, "attention_mask row 0", "contiguous");
  inputs.attention_mask = ids_row({0, 2, 1, 1, 1});
  ASSAY_EXPECT_REFUSED(inputs, "attention_mask[0, 1]", "2");
  inputs.attention_mask = ids_row({1, 1, 1, 1});
  ASSAY_EXPECT_REFUSED(inputs, "attention_mask", "[1, 4]");
  inputs.attention_mask = Tensor::from_reals(DType::kF32, {1, 5}, std::vector<double>{1, 1, 1, 1, 1});
  ASSAY_EXPECT_REFUSED(inputs, "attention_mask", "F32");
}

TEST(RefusedInputs, cu_seqlens) {
  const Checkpoint checkpoint = write_checkpoint(test_folder(), small_config());
  ModelInputs inputs = five_tokens();
  for (const std::vector<std::int64_t>& edges :
       std::vector<std::vector<std::int64_t>>{{0, 4}, {1, 5}, {0, 6}, {0}, {5}, {}}) {
    inputs.cu_seqlens = integers({static_cast<std::int64_t>(edges.size())}, edges);
    ASSAY_EXPECT_REFUSED(inputs, "cu_seqlens", "do not cover the row");
  }
  inputs.cu_seqlens = integers({4}, {0, 3, 2, 5});
  ASSAY_EXPECT_REFUSED(inputs, "cu_seqlens[2]", "2");
  inputs.cu_seqlens = integers({3}, {0, 1000000, 5});  // beyond the row before it comes back
  ASSAY_EXPECT_REFUSED(inputs, "cu_seqlens[2]", "5");
  inputs.cu_seqlens = integers({1, 2}, {0, 5});
  ASSAY_EXPECT_REFUSED(inputs, "cu_seqlens", "[1, 2]");
  inputs.cu_seqlens = integers({2}, {0, 5});
  inputs.attention_mask = ids_row({1, 1, 1, 1, 1});
  ASSAY_EXPECT_REFUSED(inputs, "attention_mask", "together with cu_seqlens");
  ModelInputs batch = with_ids(integers({2, 2}, {1, 2, 3, 4}));
  batch.cu_seqlens = integers({2}, {0, 2});
  ASSAY_EXPECT_REFUSED(batch, "cu_seqlens", "2 rows");
}

TEST(RefusedInputs, labels) {
  const Checkpoint checkpoint = write_checkpoint(test_folder(), small_config());
  ModelInputs inputs = five_tokens();
  inputs.labels = ids_row({1, 2, 3, 4});
  ASSAY_EXPECT_REFUSED(inputs, "labels", "[1, 4]");
  inputs.labels = ids_row({1, 2, 32, 4, 5});
  const std::string message = refusal(checkpoint, inputs);
  EXPECT_NE(message.find("labels"), std::string::npos) << message;
  EXPECT_NE(message.find("32"), std::string::npos) << message;
}

TEST(RefusedInputs, images) {
  nlohmann::json config = small_config();
  const Checkpoint text = write_checkpoint(test_folder() / "text", config);
  config["vision_config"] = small_vision_config();
  const Checkpoint checkpoint = write_checkpoint(test_folder() / "vision", config);
  // One frame of 2 x 4 patches of 3*2*2*2 values: two features.
  const Tensor pixels = Tensor::zeros(DType::kF32, {8, 24}), grid = integers({1, 3}, {1, 2, 4});
  ModelInputs inputs = with_ids(ids_row({1, 30, 30, 4, 5}));
  inputs.pixel_values = pixels;
  inputs.image_grid_thw = grid;
  EXPECT_EQ(refusal(checkpoint, inputs), "");
  EXPECT_EQ(refusal(text, inputs).rfind("pixel_values", 0), 0U) << "a model without a vision tower";

  ModelInputs changed = inputs;
  changed.image_grid_thw.reset();
  ASSAY_EXPECT_REFUSED(changed, "image_grid_thw", "missing");
  changed = inputs;
  changed.pixel_values.reset();
  ASSAY_EXPECT_REFUSED(changed, "pixel_values", "missing");
  changed = inputs;
  changed.pixel_values = Tensor::zeros(DType::kF32, {7, 24});
  ASSAY_EXPECT_REFUSED(changed, "pixel_values", "[7, 24]");
  changed.pixel_values = Tensor::zeros(DType::kF32, {8, 23});
  ASSAY_EXPECT_REFUSED(changed, "pixel_values", "[8, 23]");
  changed = inputs;
  changed.image_grid_thw = integers({1, 3}, {1, 3, 4});
  ASSAY_EXPECT_REFUSED(changed, "grid_thw[0]", "[1, 3, 4]");
  changed.image_grid_thw = integers({3}, {1, 2, 4});
  ASSAY_EXPECT_REFUSED(changed, "image_grid_thw", "[3]");
  for (const std::vector<std::int64_t>& ids : {std::vector<std::int64_t>{1, 30, 3, 4, 5}, {30, 30, 30, 4, 5}}) {
    changed = inputs;
    changed.input_ids = ids_row(ids);
    const std::string message = refusal(checkpoint, changed);
    EXPECT_NE(message.find("token"), std::string::npos) << message;
    EXPECT_NE(message.find("30"), std::string::npos) << message;
  }
}

TEST(RefusedInputs, a_shared_indexer_after_a_kda_layer) {
  nlohmann::json config = small_config();
  nlohmann::json& text = config["text_config"];
  text["layer_types"] = {"deepseek_sparse_attention", "linear_attention", "deepseek_sparse_attention",
                         "linear_attention"};
  text["indexer_types"] = {"full", "full", "shared", "full"};
  try {
    record<double>(write_checkpoint(test_folder(), config), five_tokens());
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("indexer_types"), std::string::npos) << error.what();
  }
}

TEST(RefusedInputs, a_missing_weight_is_named) {
  const std::string name = "model.language_model.layers.1.self_attn.q_a_proj.weight";
  const Checkpoint checkpoint =
      write_checkpoint(test_folder(), small_config(), [&](Weights64& tensors) { tensors.erase(name); });
  EXPECT_NE(refusal(checkpoint, five_tokens()).find(name), std::string::npos);
}

}  // namespace
}  // namespace assay::reference
