#include "harness/options.h"

#include <set>
#include <utility>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "cases/contract.h"
#include "cases/error.h"

namespace assay::harness {
namespace {

constexpr const char* kInputs =
    "one of: CASE, --checkpoint DIR with --trace FILE [--gradients FILE] [--names MAP], --checkpoint DIR with "
    "--training "
    "FILE [--curves FILE] [--names MAP], --vectors FILE";

bool is_plain(char c) {
  const bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return alphanumeric || std::string_view("_-./=:,+@%").find(c) != std::string_view::npos;
}

CLI::Option* add_text(CLI::App& command, const std::string& name, std::string& value, const std::string& meaning,
                      const std::string& placeholder) {
  return command.add_option(name, value, meaning)->type_name(placeholder)->check([](const std::string& word) {
    return word.empty() ? std::string("may not be empty") : std::string();
  });
}

std::vector<std::string> to_words(const VerifyOptions& options) {
  const VerifyOptions standard;
  std::vector<std::string> words;
  const auto add = [&](const char* name, const auto& value, const auto& fallback) {
    if (value != fallback) words.push_back(fmt::format("--{}={}", name, value));
  };
  add("checkpoint", options.checkpoint, standard.checkpoint);
  add("trace", options.trace, standard.trace);
  add("gradients", options.gradients, standard.gradients);
  add("training", options.training, standard.training);
  add("curves", options.curves, standard.curves);
  add("names", options.names, standard.names);
  add("vectors", options.vectors, standard.vectors);
  add("scalar", options.scalar, standard.scalar);
  add("bits", options.bits, standard.bits);
  add("jobs", options.jobs, standard.jobs);
  add("filter", options.filter, standard.filter);
  add("json", options.json, standard.json);
  add("junit", options.junit, standard.junit);
  add("profile", options.rounding.profile, standard.rounding.profile);
  for (const std::string& flag : options.rounding.flags) words.push_back("--flag=" + flag);
  if (!options.case_file.empty()) {
    // Behind "--" nothing is taken for an option, whatever it is called.
    if (options.case_file.find_first_of("-+") == 0) words.emplace_back("--");
    words.push_back(options.case_file);
  }
  return words;
}

}  // namespace

std::string shell_quoted(const std::string& word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string to_command_line(const VerifyOptions& options) {
  std::string line = "assay verify";
  for (const std::string& word : to_words(options)) line += " " + shell_quoted(word);
  return line;
}

void add_precision_options(CLI::App& command, std::string& scalar, int& bits) {
  command
      .add_option("--scalar", scalar, "what the reference computes in: double (fast), real (precise), ball (certified)")
      ->type_name("WORD")
      ->check([](const std::string& word) {
        if (word == "double" || word == "real" || word == "ball") return std::string();
        return fmt::format("'{}'; allowed: double, real, ball", word);
      });
  command.add_option("--bits", bits, "working precision of real and ball")
      ->type_name("N")
      ->check(CLI::Range(kLeastBits, kMostBits));
}

void add_contract_options(CLI::App& command, ContractOptions& options) {
  command.add_option("--profile", options.profile, "rounding contract: megatron, hf or serving")
      ->type_name("NAME")
      ->check([](const std::string& word) {
        const std::vector<std::string>& known = contract_profiles();
        if (std::find(known.begin(), known.end(), word) != known.end()) return std::string();
        return fmt::format("'{}'; allowed: {}", word, fmt::join(known, ", "));
      });
  command.add_option("--flag", options.flags, "a switch in place of GLM-5.3-Flash's value (see: assay list flags)")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
}

Flags flags_of(const ContractOptions& options) {
  Flags flags = Flags::glm();
  for (const std::string& assignment : options.flags) flags.set(assignment);
  flags.check();
  return flags;
}

void add_verify_options(CLI::App& command, VerifyOptions& options) {
  add_text(command, "case", options.case_file, "a case file", "CASE");
  add_text(command, "--checkpoint", options.checkpoint, "checkpoint folder (config.json and safetensors)", "DIR");
  add_text(command, "--trace", options.trace, "safetensors file with what an implementation computed", "FILE");
  add_text(command, "--gradients", options.gradients, "safetensors file with the gradients of the trace's loss",
           "FILE");
  add_text(command, "--training", options.training, "safetensors file with the record of a training run", "FILE");
  add_text(command, "--curves", options.curves, "write the reference's curves of the training run", "FILE");
  add_text(command, "--names", options.names, "map from the names of the trace to assay's", "MAP");
  add_text(command, "--vectors", options.vectors, "safetensors file with recorded op calls", "FILE");
  add_precision_options(command, options.scalar, options.bits);
  command.add_option("--jobs", options.jobs, "threads; 0: as many as the machine has")
      ->type_name("N")
      ->check(CLI::Range(0, kMostJobs));
  add_text(command, "--filter", options.filter, "judge only stages whose name fits", "GLOB");
  add_text(command, "--json", options.json, fmt::format("result file (default: {})", kDefaultJson), "FILE");
  add_contract_options(command, options.rounding);
  add_text(command, "--junit", options.junit, fmt::format("JUnit XML file (default: {})", kDefaultJunit), "FILE");
}

void check_verify_options(const VerifyOptions& options) {
  const std::vector<std::pair<const char*, bool>> inputs = {
      {"CASE", !options.case_file.empty()},      {"--checkpoint", !options.checkpoint.empty()},
      {"--trace", !options.trace.empty()},       {"--gradients", !options.gradients.empty()},
      {"--training", !options.training.empty()}, {"--curves", !options.curves.empty()},
      {"--names", !options.names.empty()},       {"--vectors", !options.vectors.empty()},
  };
  std::set<std::string> given;
  for (const auto& [name, present] : inputs)
    if (present) given.insert(name);
  if (given.empty()) throw InputError("verify", "nothing to judge", std::string(kInputs) + " is needed");
  std::set<std::string> needed = given;
  needed.erase("--names");
  needed.erase("--curves");
  const bool from_checkpoint = needed == std::set<std::string>{"--checkpoint", "--trace"} ||
                               needed == std::set<std::string>{"--checkpoint", "--gradients", "--trace"} ||
                               needed == std::set<std::string>{"--checkpoint", "--training"};
  const bool alone = given == std::set<std::string>{"CASE"} || given == std::set<std::string>{"--vectors"};
  if (!alone && (!from_checkpoint || (given.count("--curves") && !given.count("--training")))) {
    std::vector<std::string> words;
    for (const auto& [name, present] : inputs)
      if (present) words.emplace_back(name);
    throw InputError("verify", fmt::format("{} given", fmt::join(words, " and ")), std::string(kInputs) + " is needed");
  }
  if (options.rounding.profile.empty() && !options.rounding.flags.empty())
    throw InputError("verify", "--flag without --profile", "a flag changes the contract of a profile");
  flags_of(options.rounding);
  if (!options.json.empty() && options.json == options.junit) {
    throw InputError("verify", "--json and --junit name the same file", "two different files are needed");
  }
}

VerifyOptions parse_verify(const std::vector<std::string>& words) {
  VerifyOptions options;
  CLI::App command("", "assay verify");
  command.set_help_flag();
  add_verify_options(command, options);
  parse_words(command, words);
  check_verify_options(options);
  return options;
}

void parse_words(CLI::App& app, const std::vector<std::string>& words) {
  // CLI11 takes "--name=" for a name whose value is the next word.
  for (const std::string& word : words) {
    if (word == "--") break;
    if (word.size() > 3 && word.compare(0, 2, "--") == 0 && word.find('=') == word.size() - 1) {
      throw InputError(word.substr(0, word.size() - 1), "no value behind =", "a value is needed");
    }
  }
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::CallForVersion&) {
    throw;
  } catch (const CLI::ParseError& error) {
    throw InputError(error.what());
  }
}

}  // namespace assay::harness
