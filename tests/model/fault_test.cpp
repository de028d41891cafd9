// Planted faults are noticed at the stage where they happen, and only there where the fault travelled on.
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "tests/model/recorded_case.h"
#include "tests/model/recorder.h"

namespace assay::harness {
namespace {

using reference::Array;
using reference::Recorder;

/// What a double implementation would have recorded that does `change` to its stages.
Trace executed(const Checkpoint& checkpoint, const Trace& inputs_of, const Recorder<double>::Change& change) {
  const Recorder<double> run =
      reference::record<double>(checkpoint, inputs_of.inputs, inputs_of.conventions, 128, change);
  Trace trace;
  trace.inputs = inputs_of.inputs;
  trace.conventions = inputs_of.conventions;
  for (const auto& [stage, value] : run.stages)
    trace.stages[stage].push_back({stage, Tensor::from_reals(DType::kF64, value.shape, value.data)});
  for (const auto& [stage, decision] : run.decisions)
    trace.stages[stage].push_back(
        {stage, Tensor::from_integers(DType::kI64, decision.chosen.shape, decision.chosen.data)});
  return trace;
}

std::set<std::string> failed_locally(const Checkpoint& checkpoint, const Trace& trace) {
  VerifySettings settings;
  std::set<std::string> failed;
  for (const Check& check : verify_trace(checkpoint, trace, settings))
    if (check.scope == "local" && check.verdict == Verdict::kFail) failed.insert(check.stage);
  return failed;
}

using Stages = std::set<std::string>;

TEST(PlantedFault, an_unfaulted_run_of_the_reference_fails_nowhere) {
  ASSAY_NEED_CASE("kda_dsa");
  const RecordedCase recorded = open_case(case_folder("kda_dsa"));
  EXPECT_EQ(failed_locally(recorded.checkpoint, executed(recorded.checkpoint, recorded.trace, nullptr)), Stages{});
}

TEST(PlantedFault, a_wrong_element_is_blamed_on_its_stage_and_not_on_those_it_travels_through) {
  ASSAY_NEED_CASE("kda_dsa");
  const RecordedCase recorded = open_case(case_folder("kda_dsa"));
  for (const char* faulty : {"layers.0.mhc.h_res", "layers.4.kda.delta_rule", "layers.6.dsa.out"}) {
    const Trace trace =
        executed(recorded.checkpoint, recorded.trace, [&](const std::string& stage, Array<double>& value) {
          if (stage == faulty) value[value.size() / 2] += 1e-9;
        });
    EXPECT_EQ(failed_locally(recorded.checkpoint, trace), Stages{faulty});
  }
}

TEST(PlantedFault, a_wrong_record_alone_fails_there_and_nowhere_before) {
  ASSAY_NEED_CASE("kda_dsa");
  RecordedCase recorded = open_case(case_folder("kda_dsa"));
  Tensor& tensor = recorded.trace.stages.at("layers.6.dsa.out").front().tensor;
  std::vector<double> values = tensor.reals();
  values[values.size() / 2] += 1e-9;
  tensor = Tensor::from_reals(tensor.dtype(), tensor.shape(), values);
  const Stages failed = failed_locally(recorded.checkpoint, recorded.trace);
  EXPECT_TRUE(failed.count("layers.6.dsa.out"));
  // The next sublayer starts from the record and was recorded without it: its stages up to the next record of the
  // streams may differ too, nothing else.
  for (const std::string& stage : failed)
    EXPECT_TRUE(stage == "layers.6.dsa.out" || stage.rfind("layers.7.", 0) == 0) << stage;
}

TEST(PlantedFault, an_exchanged_expert_is_an_unexplained_row) {
  ASSAY_NEED_CASE("kda_dsa");
  RecordedCase recorded = open_case(case_folder("kda_dsa"));
  Tensor& tensor = recorded.trace.stages.at("layers.3.router.experts").front().tensor;
  std::vector<std::int64_t> experts = tensor.integers();
  // Row 5: the order of its two experts does not matter; row 7: an expert that was not chosen.
  std::swap(experts[10], experts[11]);
  for (std::int64_t e = 0; e < 8; ++e)
    if (e != experts[14] && e != experts[15]) {
      experts[14] = e;
      break;
    }
  tensor = Tensor::from_integers(tensor.dtype(), tensor.shape(), experts);
  VerifySettings settings;
  settings.filter = "layers.3.router.experts";
  int judged = 0;
  for (const Check& check : verify_trace(recorded.checkpoint, recorded.trace, settings)) {
    if (check.stage != settings.filter) continue;
    ++judged;
    EXPECT_EQ(check.rows_unexplained, 1) << line_of(check);
    EXPECT_EQ(check.verdict, Verdict::kFail) << line_of(check);
    EXPECT_NE(check.reason.find('7'), std::string::npos) << "names the row: " << line_of(check);
  }
  EXPECT_EQ(judged, 2);
}

/// The checkpoint with one element of a weight moved to a neighbouring value of its dtype.
Checkpoint with_changed_weight(const Checkpoint& checkpoint, const std::string& name) {
  const std::filesystem::path folder = test_folder();
  std::filesystem::copy_file(checkpoint.folder / "config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::permissions(folder / "config.json", std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::map<std::string, Tensor> tensors = checkpoint.file.tensors();
  std::vector<double> values = checkpoint.file.at(name).reals();
  values[values.size() / 2] *= 1.0 + 0x1p-7;  // one unit of BF16
  tensors[name] = Tensor::from_reals(checkpoint.file.at(name).dtype(), checkpoint.file.at(name).shape(), values);
  write_safetensors(folder / "model.safetensors", tensors);
  return open_checkpoint(folder);
}

TEST(PlantedFault, a_changed_weight_is_blamed_on_the_stage_that_reads_it) {
  ASSAY_NEED_CASE("kda_dsa");
  const RecordedCase recorded = open_case(case_folder("kda_dsa"));
  const std::string layers = "model.language_model.layers.";
  const std::vector<std::pair<std::string, std::string>> faults = {
      {layers + "1.self_attn.o_proj.weight", "layers.2.kda.out"},
      {layers + "3.self_attn.o_proj.weight", "layers.6.dsa.out"},
      {"lm_head.weight", "head.logits"}};
  for (const auto& [weight, stage] : faults)
    EXPECT_EQ(failed_locally(with_changed_weight(recorded.checkpoint, weight), recorded.trace), Stages{stage})
        << weight;
}

}  // namespace
}  // namespace assay::harness
