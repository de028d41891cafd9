#include "harness/options.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>

#include "cases/error.h"

namespace assay::harness {
namespace {

/// The words that a POSIX shell makes of a line.
std::vector<std::string> shell_words(const std::string& line) {
  const std::string command = "printf '%s\\0' " + line;
  FILE* pipe = ::popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string output;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) output.append(buffer.data(), n);
  EXPECT_EQ(::pclose(pipe), 0);
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < output.size();) {
    const std::size_t end = output.find('\0', begin);
    words.push_back(output.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

void expect_round_trip(const VerifyOptions& options) {
  const std::string line = to_command_line(options);
  std::vector<std::string> words = shell_words(line);
  ASSERT_GE(words.size(), 2U) << line;
  EXPECT_EQ(words[0], "assay");
  EXPECT_EQ(words[1], "verify");
  words.erase(words.begin(), words.begin() + 2);
  VerifyOptions back;
  ASSERT_NO_THROW(back = parse_verify(words)) << line;
  EXPECT_EQ(back, options) << line;
}

std::string message_of(const std::vector<std::string>& words) {
  try {
    parse_verify(words);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

const std::vector<std::string> kOddNames = {"a b.json",
                                            "it's.json",
                                            "\"quoted\".json",
                                            "$HOME `ls`.json",
                                            "-leading.json",
                                            "--json",
                                            "--",
                                            "-",
                                            "--bits=7",
                                            "+plus",
                                            "++",
                                            "größe-模型.json",
                                            "back\\slash",
                                            "new\nline",
                                            "a=b",
                                            "*?[x].json",
                                            "~",
                                            "#hash",
                                            "%%",
                                            "{}",
                                            "[a,b]",
                                            "verify",
                                            "tab\there.json",
                                            "!bang",
                                            "a;b&c|d>e",
                                            "'",
                                            "''",
                                            "=",
                                            "--x=",
                                            "\xff\xfe.json"};

TEST(Options, print_and_parse_are_inverse_for_odd_file_names) {
  for (const std::string& name : kOddNames) {
    VerifyOptions by_case;
    by_case.case_file = name;
    expect_round_trip(by_case);
    VerifyOptions by_trace;
    by_trace.checkpoint = name;
    by_trace.trace = name;
    by_trace.names = name;
    expect_round_trip(by_trace);
    VerifyOptions by_vectors;
    by_vectors.vectors = name;
    by_vectors.filter = name;
    by_vectors.json = name;
    by_vectors.junit = name + ".xml";
    expect_round_trip(by_vectors);
  }
}

TEST(Options, print_and_parse_are_inverse_for_every_option) {
  VerifyOptions options;
  options.case_file = "cases/kda_dsa.json";
  options.scalar = "real";
  options.bits = 65536;
  options.jobs = 7;
  options.filter = "layers.6.*";
  options.json = "out.json";
  options.junit = "out.xml";
  expect_round_trip(options);
  EXPECT_EQ(to_command_line(options),
            "assay verify --scalar=real --bits=65536 --jobs=7 '--filter=layers.6.*' --json=out.json --junit=out.xml "
            "cases/kda_dsa.json");
}

TEST(Options, values_may_be_words_of_their_own) {
  const VerifyOptions options = parse_verify({"--json", "r.json", "x.json", "--bits", "53"});
  EXPECT_EQ(options.case_file, "x.json");
  EXPECT_EQ(options.json, "r.json");
  EXPECT_EQ(options.bits, 53);
  EXPECT_EQ(options.scalar, "ball");
}

TEST(Options, inputs_that_contradict_each_other_are_named) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"a.json", "--vectors=v"},
                                                {"a.json", "--checkpoint=c", "--trace=t"},
                                                {"--checkpoint=c"},
                                                {"--trace=t"},
                                                {"--names=n", "--vectors=v"},
                                                {"a.json", "--names=n"},
                                                {}}) {
    EXPECT_NE(message_of(words).find("one of: CASE, --checkpoint DIR with --trace FILE"), std::string::npos)
        << message_of(words);
  }
  EXPECT_EQ(message_of({"a.json", "--vectors=v"}).find("verify: CASE and --vectors given"), 0U);
}

TEST(Options, values_out_of_range_are_named) {
  EXPECT_NE(message_of({"a", "--bits=52"}).find("--bits"), std::string::npos);
  EXPECT_NE(message_of({"a", "--bits=65537"}).find("53 to 65536"), std::string::npos);
  EXPECT_NE(message_of({"a", "--bits=many"}).find("--bits"), std::string::npos);
  EXPECT_NE(message_of({"a", "--jobs=-1"}).find("--jobs"), std::string::npos);
  EXPECT_NE(message_of({"a", "--scalar=float"}).find("double, real, ball"), std::string::npos);
  EXPECT_NE(message_of({"a", "--json="}).find("--json"), std::string::npos);
  EXPECT_NE(message_of({"a", "--json", ""}).find("--json"), std::string::npos);
  EXPECT_NE(message_of({"a", "b"}).find("b"), std::string::npos);
  EXPECT_NE(message_of({"a", "--frobnicate"}).find("--frobnicate"), std::string::npos);
  EXPECT_NE(message_of({"a", "--json=x", "--junit=x"}).find("same file"), std::string::npos);
  EXPECT_NE(message_of({"a", "--json=x", "--json=y"}).find("--json"), std::string::npos);
}

}  // namespace
}  // namespace assay::harness
