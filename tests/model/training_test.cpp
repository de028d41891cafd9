// Twenty recorded AdamW steps (shared/peer/README.md), repeated by the reference in double.
#include "harness/training.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/model/peer_case.h"
#include "tests/model/small_checkpoint.h"

namespace assay::harness {
namespace {

/// Relative deviations that two float64 implementations may be apart: of the numbers of a step, of a final parameter.
constexpr double kStepApart = 1e-9, kFinalApart = 1e-8;

const char* const kRecord = "train_kda_dsa.safetensors";

struct Recorded20 {
  Checkpoint checkpoint = open_checkpoint(peer_folder() / "kda_dsa");
  TrainingRecord record = read_training_record(peer_folder() / kRecord);
  GradientNames names = read_gradient_names(names_file(), checkpoint);

  TrainingRun run(int threads) const {
    const Jobs jobs(threads);
    return run_training(checkpoint, record, names, [](const std::string&) {});
  }
};

/// The run on two threads, made once.
const TrainingRun& two_threads() {
  static const TrainingRun run = Recorded20().run(2);
  return run;
}

#define ASSAY_NEED_RECORD ASSAY_NEED_PEER(kRecord)

TEST(Training, settings_are_those_of_the_record) {
  ASSAY_NEED_RECORD;
  const TrainingRecord record = Recorded20().record;
  EXPECT_EQ(record.settings.adamw.beta1, 0.9);
  EXPECT_EQ(record.settings.adamw.beta2, 0.95);
  EXPECT_EQ(record.settings.adamw.eps, 1e-8);
  EXPECT_EQ(record.settings.adamw.weight_decay, 0.1);
  EXPECT_EQ(record.settings.schedule.at(7), 0.002);
  EXPECT_EQ(record.settings.clip_grad_norm, 1.0);
  ASSERT_EQ(record.steps.size(), 20u);
  for (const auto& step : record.steps) EXPECT_EQ(step.size(), 2u);
}

TEST(Training, loss_and_gradient_norm_of_every_step_are_matched) {
  ASSAY_NEED_RECORD;
  const TensorFile file = Recorded20().record.file;
  for (const std::string name : {"loss", "grad_norm"}) {
    const std::vector<double> recorded = file.at(name).reals(), &found = two_threads().tensors.at(name);
    ASSERT_EQ(found.size(), recorded.size());
    RecordProperty(name + "_deviation", fmt::format("{:.2e}", relative_deviation(found, recorded)));
    for (std::size_t step = 0; step < recorded.size(); ++step)
      EXPECT_NEAR(found[step] / recorded[step], 1.0, kStepApart) << name << " of step " << step;
  }
}

TEST(Training, final_parameters_are_matched) {
  ASSAY_NEED_RECORD;
  const TensorFile file = Recorded20().record.file;
  std::size_t compared = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.rfind("final.", 0) != 0) continue;
    ASSERT_TRUE(two_threads().tensors.count(name)) << name;
    EXPECT_LE(relative_deviation(two_threads().tensors.at(name), tensor.reals()), kFinalApart) << name;
    ++compared;
  }
  EXPECT_EQ(compared, file.tensors().size() - 3);  // input_ids, loss, grad_norm
  // What gets no gradient stays as it is, weight decay included.
  const std::string norm = "model.language_model.layers.3.self_attn.indexer.k_norm.weight";
  EXPECT_EQ(two_threads().tensors.at("final." + norm), Recorded20().checkpoint.file.at(norm).reals());
}

TEST(Training, does_not_depend_on_the_number_of_threads) {
  ASSAY_NEED_RECORD;
  const TrainingRun one = Recorded20().run(1);
  EXPECT_EQ(one.tensors, two_threads().tensors);
  EXPECT_EQ(one.curves.values, two_threads().curves.values);
}

TEST(Training, only_rows_that_are_tied_exactly_follow_the_record) {
  ASSAY_NEED_RECORD;
  std::int64_t tied = 0, followed = 0;
  for (const Resolution& step : two_threads().steps) {
    EXPECT_LE(step.followed, step.tied);
    tied += step.tied;
    followed += step.followed;
  }
  // With few heads many pool scores are exactly 0 (shared/peer/README.md); the first step has no tie.
  EXPECT_EQ(two_threads().steps.front().tied, 0);
  EXPECT_GT(followed, 0);
  EXPECT_LT(tied, 20 * 2 * 90 / 10) << "of all rows, only a few";
}

TEST(Training, an_expert_that_no_token_chose_decays_and_other_parameters_without_gradient_do_not) {
  const Checkpoint checkpoint = reference::write_checkpoint(test_folder(), reference::small_config());
  reference::TrainingSettings settings;
  settings.adamw.weight_decay = 0.5;
  settings.schedule.lr = 0.25;
  reference::Training<double> training(checkpoint, reference::Conventions{}, settings);
  // Two equal tokens, two of four experts each.
  reference::ModelInputs inputs = reference::with_ids(reference::ids_row({3, 3}));
  inputs.labels = inputs.input_ids;
  reference::Observer<double> nobody;
  const reference::ModelGradients<double> before =
      reference::gradients<double>(checkpoint, inputs, reference::Conventions{}, reference::LossOptions{}, nobody);
  training.step({inputs});
  std::int64_t idle = 0;
  for (const std::string& name : before.none) {
    const auto found = training.weights().find(name);
    if (name.find(".mlp.experts.") == std::string::npos) {
      EXPECT_EQ(found, training.weights().end()) << name;
      continue;
    }
    ++idle;
    ASSERT_NE(found, training.weights().end()) << name;
    const std::vector<double> start = checkpoint.file.at(name).reals();
    for (std::size_t i = 0; i < start.size(); ++i)
      EXPECT_EQ(found->second.data[i], start[i] * (1.0 - 0.25 * 0.5)) << name;
  }
  EXPECT_GT(idle, 0);
}

TEST(Curves, are_in_the_golden_layout_and_read_back_to_the_same_bits) {
  ASSAY_NEED_RECORD;
  const Curves& curves = two_threads().curves;
  const nlohmann::json root = nlohmann::json::parse(to_golden(curves));
  EXPECT_EQ(root.size(), 3u);
  for (const char* name : {"lm loss", "grad-norm", "num-zeros"}) {
    const nlohmann::json& curve = root.at(name);
    EXPECT_EQ(curve.at("start_step"), 1);
    EXPECT_EQ(curve.at("end_step"), 20);
    EXPECT_EQ(curve.at("step_interval"), 1);
    ASSERT_EQ(curve.at("values").size(), 20u);
    for (int step = 1; step <= 20; ++step)
      EXPECT_EQ(curve.at("values").at(std::to_string(step)).get<double>(),
                curves.values.at(name)[static_cast<std::size_t>(step - 1)]);
  }
  // Embedding rows that no token of the step has.
  EXPECT_GT(curves.values.at("num-zeros").front(), 64.0);
}

}  // namespace
}  // namespace assay::harness
