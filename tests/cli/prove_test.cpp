// `assay prove gradients`, and what other commands say about gradients.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>

#include <nlohmann/json.hpp>

#include "cases/safetensors.h"
#include "program.h"
#include "tests/model/small_checkpoint.h"

namespace assay::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string last_line(const std::string& text) {
  if (text.empty()) return text;
  const std::size_t before = text.find_last_of('\n', text.size() - 2);
  return text.substr(before == std::string::npos ? 0 : before + 1);
}

TEST(Prove, every_backward_of_the_proof_file_passes) {
  const Outcome outcome = run("prove gradients");
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(last_line(outcome.out).substr(0, 6), "PASS: ");
  EXPECT_EQ(outcome.out.find("FAIL"), std::string::npos);
}

TEST(Prove, every_op_with_a_backward_is_in_the_proof_file) {
  const json proofs = json::parse(text_of(ASSAY_SOURCE_DIR "/cases/proofs.json")).at("ops");
  const std::string suffix = ".backward";
  std::size_t backwards = 0;
  for (const json& op : json::parse(run("list ops --json").out)) {
    const std::string name = op.at("name");
    if (name.size() <= suffix.size() || name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) continue;
    ++backwards;
    if (name == "hadamard_fp8.backward") continue;  // passes straight through a quantisation: no difference can tell
    EXPECT_TRUE(proofs.contains(name.substr(0, name.size() - suffix.size()))) << name;
  }
  EXPECT_GT(backwards, 25u);
}

TEST(Prove, one_op_alone_with_another_seed_and_precision) {
  const Outcome outcome = run("prove gradients delta_rule --seed 7 --bits 200 --jobs 1");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("delta_rule case 1: d_initial_state"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("swiglu"), std::string::npos);
  EXPECT_NE(last_line(outcome.out).find("at 200 bits (seed 7)"), std::string::npos) << outcome.out;
}

TEST(Prove, the_number_of_threads_changes_nothing) {
  EXPECT_EQ(run("prove gradients delta_rule --jobs 1").out, run("prove gradients delta_rule --jobs 3").out);
}

TEST(Prove, an_unknown_op_suggests_the_nearest) {
  const Outcome outcome = run("prove gradients delta_rul");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(is_complaint(outcome.err, "delta_rule")) << outcome.err;
}

TEST(Prove, bad_command_lines_are_one_line_and_status_2) {
  for (const char* words :
       {"prove", "prove gradient", "prove gradients select_tokens", "prove gradients --bits 64",
        "prove gradients --inputs /nonexistent.json", "prove gradients --jobs -1", "prove gradients swiglu extra"}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.status, 2) << words;
    EXPECT_EQ(outcome.out, "") << words;
    EXPECT_TRUE(is_complaint(outcome.err, "")) << words << ": " << outcome.err;
  }
}

/// Runs a proof file; `input` is written into it.
Outcome proof(const std::string& text, const std::string& words = "") {
  const Folder folder;
  return run("prove gradients " + words + " --inputs '" + folder.write("proof.json", text) + "'");
}

std::string one_case(const std::string& op, const std::string& given) {
  return R"({"assay_proof": 1, "ops": {")" + op + "\": [" + given + "]}}";
}

class MalformedProof : public testing::TestWithParam<std::string> {};

TEST_P(MalformedProof, is_one_line_and_status_2) {
  const Outcome outcome = proof(GetParam());
  EXPECT_EQ(outcome.status, 2) << outcome.out;
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(is_complaint(outcome.err, "")) << outcome.err;
}

INSTANTIATE_TEST_SUITE_P(
    Prove, MalformedProof,
    testing::Values(
        "", "{", "[]", "7", R"({"ops": {}})", R"({"assay_proof": 2, "ops": {}})", R"({"assay_proof": 1})",
        R"({"assay_proof": 1, "ops": []})", R"({"assay_proof": 1, "ops": {}})", R"({"assay_proof": "1", "ops": {}})",
        R"({"assay_proof": 1, "ops": {"swiglu": {}}})", R"({"assay_proof": 1, "ops": {"swiglu": []}})",
        R"({"assay_proof": 1, "ops": {"swiglu": 3}})", one_case("no_such_op", R"({"inputs": {}})"),
        one_case("swiglu", "{}"), one_case("swiglu", "[]"), one_case("swiglu", R"({"inputs": []})"),
        one_case("swiglu", R"({"inputs": {"gate": {"shape": [2]}}})"),
        one_case("swiglu", R"({"inputs": {"gate": {}, "up": {"shape": [2]}}})"),
        one_case("swiglu", R"({"inputs": {"gate": 1, "up": {"shape": [2]}}})"),
        one_case("swiglu", R"({"inputs": {"gate": {"shape": [3]}, "up": {"shape": [2]}}})"),
        one_case("swiglu", R"({"inputs": {"gate": {"shape": [-3]}, "up": {"shape": [-3]}}})"),
        one_case("swiglu", R"({"inputs": {"gate": {"shape": [1000000000000000000]}, "up": {"shape": [1]}}})"),
        one_case("swiglu", R"({"inputs": {"gate": {"shape": ["a"]}, "up": {"shape": [2]}}})"),
        one_case("swiglu", R"({"inputs": {"gate": {"values": [null]}, "up": {"values": [1]}}})"),
        one_case("swiglu", R"({"inputs": {"gate": {"shape": [2]}, "up": {"shape": [2]}, "x": {"shape": [2]}}})"),
        one_case("swiglu", R"({"inputs": {"gate": {"shape": [2], "scale": "1"}, "up": {"shape": [2]}}})"),
        one_case("swiglu",
                 R"({"attributes": {"limits": 1}, "inputs": {"gate": {"shape": [2]}, "up": {"shape": [2]}}})")));

// At the limit itself the one-sided derivatives differ: a central difference is half of the gradient that the op
// defines there (it passes at equality), and no gradient can match it.
TEST(Prove, a_gradient_that_cannot_match_fails_and_is_named) {
  const Outcome outcome =
      proof(one_case("swiglu", R"({"attributes": {"limit": 10}, "inputs": {"gate": {"values": [10, 1]},
                                   "up": {"values": [3, 2]}}})"));
  EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
  EXPECT_EQ(last_line(outcome.out).substr(0, 6), "FAIL: ") << outcome.out;
  EXPECT_NE(last_line(outcome.out).find("1 of 2"), std::string::npos) << outcome.out;
  const std::size_t line = outcome.out.find("swiglu case 1: d_gate");
  ASSERT_NE(line, std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.substr(line, outcome.out.find('\n', line) - line).find("FAIL"), std::string::npos);
}

TEST(ProveModel, a_case_file_proves_every_parameter_that_has_a_gradient) {
  const Folder folder;
  json config = reference::small_config();
  json& text = config["text_config"];
  text["num_hidden_layers"] = 2;
  for (const char* field : {"layer_types", "mlp_layer_types", "indexer_types"})
    text[field] = {text[field].at(0), text[field].at(1)};
  const Checkpoint checkpoint = reference::write_checkpoint(folder.path() / "model", config);
  const Tensor ids = reference::ids_row(reference::seeded_ids(7, 1));
  write_safetensors(
      folder.path() / "trace.safetensors",
      {{"input.input_ids", ids}, {"input.labels", ids}, {"act.norm", Tensor::zeros(DType::kF64, {1, 7, 8})}});
  fs::copy_file(ASSAY_SOURCE_DIR "/cases/names/transformers.json", folder.path() / "names.json");
  const std::string file = folder.write("small.json", json{{"assay_case", 1},
                                                           {"name", "small"},
                                                           {"title", "small"},
                                                           {"checkpoint", "model"},
                                                           {"trace", "trace.safetensors"},
                                                           {"names", "names.json"},
                                                           {"provenance", "seeded"}}
                                                          .dump());
  const Outcome all = run("prove gradients '" + file + "'");
  EXPECT_EQ(all.status, 0) << all.out << all.err;
  EXPECT_EQ(last_line(all.out).substr(0, 6), "PASS: ") << all.out;
  EXPECT_NE(all.out.find("\nmodel.language_model.layers.1.self_attn.kv_b_proj.weight "), std::string::npos) << all.out;
  EXPECT_EQ(all.out.find("indexer"), std::string::npos) << all.out;
  const Outcome some = run("prove gradients '" + file + "' --filter '*layers.0.hc_attn_*' --seed 3");
  EXPECT_EQ(some.status, 0) << some.out << some.err;
  EXPECT_NE(last_line(some.out).find("PASS: 3 of 3"), std::string::npos) << some.out;
  EXPECT_EQ(run("prove gradients '" + file + "' --filter '*indexer*'").status, 2);
}

TEST(Prove, a_filter_that_fits_nothing_is_bad_input) {
  const Outcome outcome = run("prove gradients --filter 'nothing'");
  EXPECT_EQ(outcome.status, 2) << outcome.out;
  EXPECT_TRUE(is_complaint(outcome.err, "--filter")) << outcome.err;
}

// T75, limit 10.
TEST(EvalBackward, T75_swiglu) {
  const Outcome outcome = run("eval swiglu.backward - --digits 12 --set limit=10",
                              R"({"inputs": {"gate": [12, 5, -12, 10], "up": [3, -15, 3, 10], "d_y": [1, 1, 1, 1]}})");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json outputs = json::parse(outcome.out).at("outputs");
  const json &gate = outputs.at("d_gate").at("values"), &up = outputs.at("d_up").at("values");
  const auto number = [](const json& text) { return std::strtod(text.get<std::string>().c_str(), nullptr); };
  EXPECT_EQ(gate.at(0), "0");
  EXPECT_EQ(up.at(1), "0");
  EXPECT_NEAR(number(gate.at(2)), -2.02756403e-4, 5e-13);
  EXPECT_EQ(gate.at(3).get<std::string>().substr(0, 13), "10.0040856021");
  EXPECT_EQ(up.at(3).get<std::string>().substr(0, 13), "9.99954602131");
}

TEST(ListBackward, an_op_states_cotangents_and_gradients) {
  const Outcome outcome = run("list ops delta_rule.backward");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out.rfind("delta_rule.backward: ", 0), 0u) << outcome.out;
  for (const char* operand : {"d_o", "d_final_state", "d_q", "d_k", "d_v", "d_g", "d_beta", "d_initial_state"})
    EXPECT_NE(outcome.out.find(std::string(operand) + " ["), std::string::npos) << operand;
}

TEST(VerifyGradients, need_the_trace_whose_loss_they_belong_to) {
  for (const std::string words : {"verify --gradients g.safetensors", "verify --checkpoint c --gradients g.safetensors",
                                  "verify --checkpoint c --trace t --gradients g --training r",
                                  "verify --checkpoint c --trace t --curves x.json"}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.status, 2) << words;
    EXPECT_TRUE(is_complaint(outcome.err, "--trace")) << outcome.err;
  }
}

fs::path recorded_folder() {
  const char* folder = std::getenv("ASSAY_PEER");
  const fs::path source = ASSAY_SOURCE_DIR;
  if (folder != nullptr) return fs::path(folder) / "vision";
  const fs::path inside = source / "shared" / "peer";
  return fs::weakly_canonical(fs::exists(inside) ? inside : source / ".." / "shared" / "peer") / "vision";
}

class PlantedFault : public testing::Test {
 protected:
  /// Judges the gradients of a recorded case after a change; of the stages only one, to be quick.
  Outcome judged(const std::function<void(std::map<std::string, Tensor>&)>& change) {
    const fs::path folder = recorded_folder();
    std::map<std::string, Tensor> tensors = TensorFile::open(folder / "grads_f64.safetensors").tensors();
    change(tensors);
    write_safetensors(here_.path() / "g.safetensors", tensors);
    const auto in_here = [&](const char* name) { return "'" + (here_.path() / name).string() + "'"; };
    return run("verify --scalar double --checkpoint '" + folder.string() + "' --trace '" +
               (folder / "f64.safetensors").string() + "' --gradients " + in_here("g.safetensors") + " --json " +
               in_here("r.json") + " --junit " + in_here("j.xml") + " --filter 'grad.*'");
  }
  static bool available() { return fs::exists(recorded_folder() / "grads_f64.safetensors"); }

  Folder here_;
};

#define ASSAY_NEED_RECORDS \
  if (!available()) GTEST_SKIP() << "no " << recorded_folder() << "; set ASSAY_PEER to the folder of the records"

const std::string kParameter = "grad.model.language_model.norm.weight";

TEST_F(PlantedFault, nothing_planted_passes) {
  ASSAY_NEED_RECORDS;
  const Outcome outcome = judged([](auto&) {});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
}

TEST_F(PlantedFault, in_one_gradient_is_found_and_named) {
  ASSAY_NEED_RECORDS;
  const Outcome outcome = judged([](auto& tensors) {
    std::vector<double> values = tensors.at(kParameter).reals();
    values[5] *= 1.0 + 1e-6;
    tensors[kParameter] = Tensor::from_reals(DType::kF64, tensors.at(kParameter).shape(), values);
  });
  EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("first: " + kParameter), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("FAIL: 1 FAIL"), std::string::npos) << outcome.out;
}

TEST_F(PlantedFault, a_missing_gradient_is_found_and_named) {
  ASSAY_NEED_RECORDS;
  const Outcome outcome = judged([](auto& tensors) { tensors.erase(kParameter); });
  EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("parameters without gradient"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(kParameter.substr(5)), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace assay::test
