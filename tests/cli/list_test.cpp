#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "program.h"

namespace assay::test {
namespace {

using nlohmann::json;

TEST(List, ops_are_one_line_each) {
  const Outcome outcome = run("list ops");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.out.find("\nrms_norm "), std::string::npos);
  EXPECT_NE(outcome.out.find("(x, weight?) -> (y): y = x / sqrt(mean(x^2) + eps) * weight\n"), std::string::npos);
  const json ops = json::parse(run("list ops --json").out);
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), static_cast<std::ptrdiff_t>(ops.size()));
}

TEST(List, one_op_is_shown_with_its_source) {
  const Outcome outcome = run("list ops rms_norm");
  EXPECT_EQ(outcome.status, 0);
  for (const char* part : {"attribute  eps real, required", "input      x [... N]", "weight [N] optional",
                           "output     y [... N]", "source     shared/spec: model.md 4"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  const json op = json::parse(run("list ops rms_norm --json").out).at(0);
  EXPECT_EQ(op.at("name"), "rms_norm");
  EXPECT_EQ(op.at("inputs").at(1).at("optional"), true);
  EXPECT_EQ(op.at("attributes").at(0).at("required"), true);
}

TEST(List, every_op_has_a_contract) {
  const std::string text = run("list ops --contract").out;
  const json ops = json::parse(run("list ops --json").out);
  for (const json& op : ops)
    EXPECT_NE(("\n" + text).find("\n" + op.at("name").get<std::string>() + " "), std::string::npos) << op.at("name");
}

// model.md 13: HF rounds the normalised row before the weight, Megatron rounds once.
TEST(List, contracts_differ_by_profile_and_by_flag) {
  const json table = json::parse(run("list ops rms_norm --contract --json").out);
  EXPECT_EQ(table.at("hf").at("ops").at("rms_norm").at("points").at("normed"), "activation");
  EXPECT_EQ(table.at("megatron").at("ops").at("rms_norm").at("points").at("normed"), "none");
  const std::string op = "list ops mhc_mapping --contract --json --profile megatron";
  const auto inside = [&](const std::string& flags) {
    return json::parse(run(op + flags).out).at("megatron").at("ops").at("mhc_mapping").at("attributes")
        .at("norm_eps_inside_sqrt");
  };
  EXPECT_EQ(inside(""), true);
  EXPECT_EQ(inside(" --flag mhc_norm_eps_inside_sqrt=false"), false);
}

// megatron.md 12: the fused kernels implement neither precision flag.
TEST(List, illegal_flags_are_refused) {
  const Outcome fused = run("list ops --contract --profile megatron --flag use_fused_mhc=true");
  EXPECT_EQ(fused.status, 2);
  EXPECT_NE(fused.err.find("use_fused_mhc"), std::string::npos) << fused.err;
  EXPECT_EQ(run("list ops --contract --flag no_such_flag=1").status, 2);
}

// Largest values: OCP OFP8 and IEEE 754 (formats.h).
TEST(List, formats_have_their_extremes) {
  const json formats = json::parse(run("list formats --json").out);
  ASSERT_EQ(formats.size(), 7U);
  std::set<std::string> names;
  for (const json& format : formats) names.insert(format.at("name").get<std::string>());
  EXPECT_EQ(names, (std::set<std::string>{"bf16", "fp16", "tf32", "fp32", "e4m3", "e5m2", "ue8m0"}));
  EXPECT_EQ(formats.at(4).at("max"), 448.0);
  EXPECT_EQ(formats.at(4).at("bits"), 8);
  EXPECT_EQ(formats.at(0).at("unit_roundoff"), 0x1p-8);
  const Outcome table = run("list formats");
  EXPECT_NE(table.out.find("\nbf16 "), std::string::npos);
  EXPECT_EQ(std::count(table.out.begin(), table.out.end(), '\n'), 8);
}

TEST(List, cases_are_the_case_files_of_a_folder) {
  const Folder folder;
  folder.write("b.json", R"({"assay_case": 1, "name": "long_name", "title": "second", "checkpoint": "b",
                             "trace": "b/t.safetensors", "names": "n.json", "provenance": "p"})");
  folder.write("a.json", R"({"assay_case": 1, "name": "short", "title": "first", "checkpoint": "a",
                             "trace": "a/t.safetensors", "names": "n.json", "provenance": "p"})");
  folder.write("n.json", R"({"anything": "else"})");
  const std::string option = " --cases '" + folder.path().string() + "'";
  EXPECT_EQ(run("list" + option).out, "short      first\nlong_name  second\n");
  EXPECT_EQ(run("list cases" + option).out, "short      first\nlong_name  second\n");
  const json cases = json::parse(run("list cases --json" + option).out);
  ASSERT_EQ(cases.size(), 2U);
  EXPECT_EQ(cases.at(0).at("checkpoint"), (folder.path() / "a").string());

  folder.write("c.json", R"({"assay_case": 1, "name": "x"})");
  const Outcome broken = run("list cases" + option);
  EXPECT_EQ(broken.status, 2);
  EXPECT_TRUE(is_complaint(broken.err, "c.json: field title: missing")) << broken.err;
}

TEST(List, an_empty_folder_is_said_to_be_empty) {
  const Folder folder;
  const Outcome outcome = run("list --cases '" + folder.path().string() + "'");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "no case files in " + folder.path().string() + "\n");
  EXPECT_EQ(run("list --json --cases '" + folder.path().string() + "'").out, "[]\n");
}

TEST(List, a_reader_that_goes_away_is_no_error) {
  EXPECT_EQ(run("list ops --contract | head -n 1; true").err, "");
  const Outcome full = run("list ops --contract >/dev/full");
  EXPECT_EQ(full.status, 3);
  EXPECT_TRUE(is_complaint(full.err, "stdout: cannot write")) << full.err;
}

struct Bad {
  const char* words;
  const char* message;
};

class BadCommandLine : public testing::TestWithParam<Bad> {};

TEST_P(BadCommandLine, is_one_line_and_status_2) {
  const Outcome outcome = run(GetParam().words);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(is_complaint(outcome.err, GetParam().message)) << outcome.err;
}

INSTANTIATE_TEST_SUITE_P(
    Usage, BadCommandLine,
    testing::Values(Bad{"", "command: missing; allowed: verify, eval, list, inspect"},
                    Bad{"verfy", "command 'verfy': unknown; allowed: verify, eval, list, inspect"},
                    Bad{"--bogus", "option '--bogus': unknown"}, Bad{"list things", "allowed: cases, ops, formats"},
                    Bad{"list ops rms_nrom", "op rms_nrom: unknown; nearest: rms_norm"},
                    Bad{"list formats bf16", "list formats: 'bf16'"}, Bad{"list formats --contract", "--contract"},
                    Bad{"list ops --cases .", "list ops: --cases"}, Bad{"list ops rms_norm l2norm", "l2norm"},
                    Bad{"list cases --cases /nonexistent", "/nonexistent"}, Bad{"list --cases", "--cases"},
                    Bad{"list --jsno", "--jsno"}, Bad{"verify", "verify: nothing to judge; one of: CASE"},
                    Bad{"verify a.json --vectors v", "CASE and --vectors given"},
                    Bad{"verify --checkpoint c", "--checkpoint given; one of"},
                    Bad{"verify --trace t --names n", "--trace and --names given"},
                    Bad{"verify a.json b.json", "b.json"}, Bad{"verify a.json --bits 52", "--bits"},
                    Bad{"verify a.json --bits 1e3", "--bits"}, Bad{"verify a.json --jobs -1", "--jobs"},
                    Bad{"verify a.json --scalar float", "'float'; allowed: double, real, ball"},
                    Bad{"verify a.json --json=", "--json: no value"}, Bad{"verify a.json --json ''", "--json"},
                    Bad{"verify a.json --json a --json b", "--json"},
                    Bad{"verify a.json --json a --junit a", "same file"}));

TEST(Usage, version_and_help_are_on_stdout) {
  EXPECT_EQ(run("--version").out.compare(0, 6, "assay "), 0);
  for (const char* command : {"", "verify", "eval", "list", "inspect", "inspect checkpoint"}) {
    const Outcome outcome = run(std::string(command) + " --help");
    EXPECT_EQ(outcome.status, 0) << command;
    EXPECT_EQ(outcome.err, "") << command;
    EXPECT_NE(outcome.out.find(*command == '\0' ? "exit status" : "example: "), std::string::npos) << outcome.out;
  }
}

TEST(Usage, control_characters_of_a_message_are_shown_as_codes) {
  const Outcome outcome = run("eval \"$(printf 'a\\nb\\033')\" -");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(is_complaint(outcome.err, "a\\x0ab\\x1b")) << outcome.err;
}

}  // namespace
}  // namespace assay::test
