// `assay verify` as a program, on the bundled case and on recorded cases beside the checkout.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <regex>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "cases/safetensors.h"
#include "program.h"

namespace assay::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kCases = ASSAY_SOURCE_DIR "/cases";
const std::string kBundled = kCases + "/kda_dsa.json";

/// A folder of its own, in which the program runs.
class Verify : public testing::Test {
 protected:
  Verify() : before_(fs::current_path()) { fs::current_path(folder_.path()); }
  ~Verify() override { fs::current_path(before_); }

  static json result(const std::string& file = "result.json") { return json::parse(text_of(file)); }
  /// Lines of stdout from the back: 0 is the last.
  static std::string line(const Outcome& outcome, int from_back = 0) {
    std::string text = outcome.out;
    for (int i = 0; i < from_back && !text.empty(); ++i) text.erase(text.find_last_of('\n', text.size() - 2) + 1);
    if (text.empty()) return text;
    text.pop_back();
    return text.substr(text.find_last_of('\n') + 1);
  }

 private:
  fs::path before_;
  Folder folder_;
};

fs::path peer() {
  if (const char* folder = std::getenv("ASSAY_PEER")) return folder;
  const fs::path source = ASSAY_SOURCE_DIR;
  const fs::path inside = source / "shared" / "peer";
  return fs::exists(inside) ? inside : source / ".." / "shared" / "peer";
}

#define ASSAY_NEED_FILE(file) \
  if (!fs::exists(file)) GTEST_SKIP() << (file).string() << " is missing; set ASSAY_PEER to the folder of the records"

std::string in_quotes(const fs::path& path) { return "'" + path.string() + "'"; }

/// "stage scope" -> verdict.
std::multimap<std::string, std::string> verdicts(const json& document) {
  std::multimap<std::string, std::string> all;
  for (const json& check : document.at("checks"))
    all.emplace(check.at("stage").get<std::string>() + " " + check.at("scope").get<std::string>(), check.at("verdict"));
  return all;
}

std::set<std::string> names_of(const json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

// The schema is closed and requires every property (ResultJson.the_schema_is_closed): names are equal to its own.
void expect_fields_of_schema(const json& document) {
  const json schema = json::parse(text_of(ASSAY_SOURCE_DIR "/harness/result.schema.json"));
  EXPECT_EQ(names_of(document), names_of(schema.at("properties")));
  const json& rules = schema.at("$defs").at("check").at("properties");
  for (const json& check : document.at("checks")) EXPECT_EQ(names_of(check), names_of(rules));
  EXPECT_EQ(document.at("assay_result"), schema.at("properties").at("assay_result").at("const"));
}

TEST_F(Verify, the_bundled_case_passes_and_leaves_its_results) {
  const Outcome outcome = run("verify " + in_quotes(kBundled));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(line(outcome).substr(0, 5), "PASS:") << outcome.out;
  EXPECT_EQ(outcome.out.find("reproduce"), std::string::npos);
  const json document = result();
  expect_fields_of_schema(document);
  EXPECT_EQ(document.at("exit_status"), 0);
  EXPECT_EQ(document.at("title"), "kda_dsa");
  EXPECT_EQ(document.at("summary"), line(outcome));
  EXPECT_EQ(document.at("counts").at("PASS"), document.at("checks").size());
  EXPECT_GT(document.at("peak_memory_bytes"), 0);
  EXPECT_EQ(text_of("junit.xml").substr(0, 5), "<?xml");
}

TEST_F(Verify, without_a_terminal_nothing_is_coloured_and_stderr_is_empty) {
  const Outcome outcome = run("verify " + in_quotes(kBundled) + " --filter 'head.*'");
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find('\033'), std::string::npos);
  EXPECT_EQ(outcome.out.find('\r'), std::string::npos);
}

TEST_F(Verify, filter_judges_only_its_stages_and_results_go_where_told) {
  fs::create_directory("there");
  const Outcome outcome =
      run("verify " + in_quotes(kBundled) + " --filter 'layers.6.*' --json there/a.json --junit there/b.xml");
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_FALSE(fs::exists("result.json"));
  EXPECT_FALSE(fs::exists("junit.xml"));
  EXPECT_TRUE(fs::exists("there/b.xml"));
  const json checks = result("there/a.json").at("checks");
  EXPECT_GT(checks.size(), 5u);
  for (const json& check : checks) EXPECT_EQ(check.at("stage").get<std::string>().substr(0, 9), "layers.6.");
}

TEST_F(Verify, balls_certify_every_stage_to_1e_minus_20) {
  const Outcome outcome = run("verify " + in_quotes(kBundled) + " --scalar ball --bits 128");
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_NE(line(outcome).find("certified to"), std::string::npos);
  const json document = result();
  EXPECT_EQ(document.at("scalar"), "ball");
  EXPECT_GE(document.at("bits"), 128);
  int certified = 0;
  for (const json& check : document.at("checks")) {
    EXPECT_LE(check.at("certified"), 1e-20) << check.at("stage");
    if (check.at("certified") > 0) ++certified;
  }
  EXPECT_GT(certified, 100);
}

/// The result without what may differ between two runs of the same question.
json comparable(const std::string& file) {
  json document = json::parse(text_of(file));
  for (const char* field : {"seconds", "peak_memory_bytes", "command"}) document.erase(field);
  for (json& check : document.at("checks")) check.erase("seconds");
  return document;
}

TEST_F(Verify, the_number_of_threads_changes_nothing) {
  const std::string words = "verify " + in_quotes(kBundled);
  ASSERT_EQ(run(words + " --jobs 1 --json one.json --junit one.xml").status, 0);
  ASSERT_EQ(run(words + " --jobs 3 --json three.json --junit three.xml").status, 0);
  EXPECT_EQ(comparable("one.json"), comparable("three.json"));
}

TEST_F(Verify, a_planted_fault_fails_at_its_stage_and_is_reproduced) {
  const TensorFile recorded = TensorFile::open(kCases + "/kda_dsa/f64.safetensors");
  std::map<std::string, Tensor> tensors = recorded.tensors();
  const std::string name = "act.layers.2.mlp";
  std::vector<double> values = tensors.at(name).reals();
  values[1234] += 1e-6;
  tensors[name] = Tensor::from_reals(DType::kF64, tensors.at(name).shape(), values);
  write_safetensors("it's faulty.safetensors", tensors);

  const Outcome outcome = run("verify --checkpoint " + in_quotes(kCases + "/kda_dsa") +
                              " --trace \"it's faulty.safetensors\" --filter 'layers.5.*'");
  EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
  EXPECT_EQ(line(outcome, 1).substr(0, 5), "FAIL:") << outcome.out;
  EXPECT_NE(line(outcome, 1).find("first: layers.5.ffn.out"), std::string::npos) << outcome.out;
  const json document = result();
  EXPECT_EQ(document.at("exit_status"), 1);
  for (const json& check : document.at("checks")) {
    if (check.at("stage") != "layers.5.ffn.out" || check.at("scope") != "local") continue;
    EXPECT_EQ(check.at("verdict"), "FAIL");
    EXPECT_EQ(check.at("over_limit"), 1);
    EXPECT_NEAR(check.at("error"), 1e-6, 1e-12);
  }

  const std::string command = "reproduce: assay ";
  ASSERT_EQ(line(outcome).substr(0, command.size()), command) << outcome.out;
  const std::string words = line(outcome).substr(command.size());
  fs::rename("result.json", "first.json");
  EXPECT_EQ(run(words).status, 1) << words;
  EXPECT_EQ(verdicts(result()), verdicts(result("first.json")));
  EXPECT_EQ(result().at("command"), "assay " + words);
}

struct VectorFile {
  const char* file;
  std::size_t cases;
  const char* drowning = "";  ///< cases in which roundings that the contract allows may be as large as the values
};

class VerifyVectors : public Verify, public testing::WithParamInterface<VectorFile> {};

TEST_P(VerifyVectors, every_case_is_judged_and_passes) {
  const fs::path file = peer() / GetParam().file;
  ASSAY_NEED_FILE(file);
  const Outcome outcome = run("verify --vectors " + in_quotes(fs::absolute(file)));
  EXPECT_EQ(outcome.status, *GetParam().drowning ? 1 : 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const json document = result();
  expect_fields_of_schema(document);
  std::set<std::string> cases;
  for (const json& check : document.at("checks")) {
    const std::string stage = check.at("stage");
    cases.insert(stage.substr(0, stage.find('.', stage.find('.') + 1)));
    EXPECT_LE(check.at("share"), 1.0) << stage;
    if (check.at("verdict") == "MISTRUSTED") {
      EXPECT_TRUE(std::regex_match(stage, std::regex(GetParam().drowning))) << stage;
      EXPECT_NE(check.at("reason").get<std::string>().find("zeros would have passed"), std::string::npos) << stage;
    }
  }
  EXPECT_EQ(cases.size(), GetParam().cases);
  EXPECT_EQ(document.at("counts").at("FAIL"), 0);
  EXPECT_EQ(document.at("counts").at("ERROR"), 0);
  EXPECT_EQ(document.at("counts").at("SKIPPED"), 0);
}

INSTANTIATE_TEST_SUITE_P(Peer, VerifyVectors,
                         // Of equal keys, of gates at the bound and of one short document some gradients cancel to less
                         // than the chunked kernel's BF16 operands may disturb: inside limits as large as the values.
                         testing::Values(VectorFile{"mcore/mhc.safetensors", 102},
                                         VectorFile{"mcore/kpool_fp8.safetensors", 157},
                                         VectorFile{"mcore/misc.safetensors", 180},
                                         VectorFile{"kda_kernel.safetensors", 5,
                                                    "kda_kernel\\.(collinear|near_collinear|gates_at_bound|partial)\\..*"}));

class VerifyTrace : public Verify, public testing::WithParamInterface<const char*> {};

TEST_P(VerifyTrace, every_record_passes) {
  const fs::path folder = peer() / GetParam();
  ASSAY_NEED_FILE(folder / "f64.safetensors");
  const Outcome outcome = run("verify --checkpoint " + in_quotes(fs::absolute(folder)) + " --trace " +
                              in_quotes(fs::absolute(folder / "f64.safetensors")));
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const json document = result();
  EXPECT_EQ(document.at("counts").at("PASS"), document.at("checks").size()) << document.at("counts");
}

INSTANTIATE_TEST_SUITE_P(Peer, VerifyTrace, testing::Values("shared_index_groups", "vision", "long_chunks"));

class VerifyKilled : public Verify, public testing::WithParamInterface<int> {};

TEST_P(VerifyKilled, no_result_and_no_half_written_file_is_left) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    ::execl(ASSAY_PROGRAM, "assay", "verify", kBundled.c_str(), "--scalar=ball", "--jobs=1", nullptr);
    ::_exit(127);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_EQ(::kill(child, GetParam()), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the run was over before it was killed";
  EXPECT_TRUE(fs::is_empty(".")) << fs::directory_iterator(".")->path();
}

INSTANTIATE_TEST_SUITE_P(Signals, VerifyKilled, testing::Values(SIGKILL, SIGINT, SIGTERM));

}  // namespace
}  // namespace assay::test
