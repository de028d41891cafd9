#include "harness/program.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "cases/error.h"
#include "harness/commands/commands.h"

#ifndef ASSAY_VERSION
#define ASSAY_VERSION "0.1.0"
#endif

namespace assay::harness {
namespace {

constexpr int kBadInput = 2;
constexpr int kBadEnvironment = 3;

/// One line whatever the message quotes: control characters are shown as \xNN.
std::string one_line(const std::string& message) {
  std::string line;
  for (const char c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      line += c;
    }
  }
  return line;
}

int complain(const std::string& message, int status) {
  std::fprintf(stderr, "assay: %s\n", one_line(message).c_str());
  return status;
}

class Program {
 public:
  Program() {
    app_.set_version_flag("--version", "assay " ASSAY_VERSION);
    app_.require_subcommand(1);
    app_.footer(
        "exit status: 0 passed; 1 a verdict is FAIL, MISTRUSTED or ERROR; 2 bad usage or input; 3 bad environment");
    add_verify();
    add_eval();
    add_list();
    add_inspect();
    add_prove();
  }

  int run(const std::vector<std::string>& words) {
    try {
      check_command(app_, words, 0);
      if (!words.empty() && words.front() == "inspect") check_command(*inspect_, words, 1);
      if (!words.empty() && words.front() == "prove") check_command(*prove_, words, 1);
      parse_words(app_, words);
    } catch (const CLI::CallForHelp&) {
      print(app_.help());
      return 0;
    } catch (const CLI::CallForVersion&) {
      print("assay " ASSAY_VERSION "\n");
      return 0;
    }
    if (verify_->parsed()) {
      check_verify_options(verify_options_);
      return run_verify(verify_options_);
    }
    if (eval_->parsed()) return run_eval(eval_options_);
    if (list_->parsed()) return run_list(list_options_);
    if (prove_->parsed()) return run_prove_gradients(prove_options_);
    ASSAY_CHECK(inspect_->parsed());
    return run_inspect_checkpoint(inspect_options_);
  }

 private:
  /// Says which commands there are when the word at `position` is none of them.
  static void check_command(const CLI::App& app, const std::vector<std::string>& words, std::size_t position) {
    std::vector<std::string> allowed;
    for (const CLI::App* command : app.get_subcommands(nullptr)) allowed.push_back(command->get_name());
    const std::string choice = fmt::format("allowed: {} (see --help)", fmt::join(allowed, ", "));
    if (words.size() <= position) throw InputError("command", "missing", choice);
    const std::string& word = words[position];
    if (word.compare(0, 1, "-") == 0) {
      if (app.get_option_no_throw(word) != nullptr) return;
      throw InputError("option '" + word + "'", "unknown in front of a command", choice);
    }
    if (std::find(allowed.begin(), allowed.end(), word) == allowed.end()) {
      throw InputError(fmt::format("command '{}'", word), "unknown", choice);
    }
  }

  void add_verify() {
    verify_ = app_.add_subcommand("verify", "judge what an implementation computed against the reference");
    add_verify_options(*verify_, verify_options_);
    verify_->footer("example: assay verify cases/kda_dsa.json --scalar ball --filter 'layers.6.*'");
  }

  void add_eval() {
    eval_ = app_.add_subcommand("eval", "evaluate one op on inputs from a JSON file, to certified digits");
    eval_->add_option("op", eval_options_.op, "name of the op (see: assay list ops)")->type_name("OP")->required();
    eval_
        ->add_option("file", eval_options_.file,
                     "{\"inputs\": {...}, \"attributes\": {...}, \"dtypes\": {...}}; - is stdin")
        ->type_name("FILE")
        ->required();
    eval_->add_option("--set", eval_options_.set, "an attribute in place of the file's; may be repeated")
        ->type_name("NAME=VALUE")
        ->allow_extra_args(false);
    eval_->add_option("--digits", eval_options_.digits, "significant decimal digits")
        ->type_name("N")
        ->check(CLI::Range(1, kMostDigits));
    add_precision_options(*eval_, eval_options_.scalar, eval_options_.bits);
    eval_->footer(
        "example: echo '{\"inputs\": {\"x\": [1, \"0x1.8p-3\"]}}' | assay eval rms_norm - --set eps=1e-6 --digits 40");
  }

  void add_list() {
    list_ = app_.add_subcommand("list", "list cases, ops, rounding contracts, number formats or flags");
    list_->add_option("what", list_options_.what, "cases (default), ops, formats or flags")
        ->type_name("WHAT")
        ->check([](const std::string& word) {
          if (word == "cases" || word == "ops" || word == "formats" || word == "flags") return std::string();
          return fmt::format("'{}'; allowed: cases, ops, formats, flags", word);
        });
    list_->add_option("name", list_options_.name, "one op, with everything about it")->type_name("NAME");
    list_->add_flag("--contract", list_options_.contract, "ops: where each rounds, to what, and how it sums");
    add_contract_options(*list_, list_options_.rounding);
    list_->add_flag("--json", list_options_.json, "print JSON");
    list_->add_option("--cases", list_options_.cases, "folder of the case files")->type_name("DIR");
    list_->footer("example: assay list ops rms_norm");
  }

  void add_inspect() {
    inspect_ = app_.add_subcommand("inspect", "show what a file holds and what is wrong with it");
    inspect_->require_subcommand(1);
    CLI::App* checkpoint = inspect_->add_subcommand("checkpoint", "tensors of a checkpoint, and its faults");
    checkpoint->add_option("folder", inspect_options_.folder, "folder with config.json and safetensors")
        ->type_name("DIR")
        ->required();
    checkpoint->add_flag("--json", inspect_options_.json, "print JSON");
    checkpoint->add_flag("--tensors", inspect_options_.tensors, "every tensor, not only the totals");
    checkpoint->footer("example: assay inspect checkpoint GLM-5.3-Flash --json");
    inspect_->footer("example: assay inspect checkpoint GLM-5.3-Flash");
  }

  void add_prove() {
    prove_ = app_.add_subcommand("prove", "prove the reference itself");
    prove_->require_subcommand(1);
    CLI::App* gradients = prove_->add_subcommand("gradients", "every backward against central differences");
    gradients->add_option("what", prove_options_.what, "an op or a case file (default: all ops)")->type_name("OP|CASE");
    gradients->add_option("--inputs", prove_options_.inputs, "inputs of the op proofs")->type_name("FILE");
    gradients->add_option("--bits", prove_options_.bits, "precision of the gradients")
        ->type_name("N")
        ->check(CLI::Range(128, kMostBits));
    gradients->add_option("--seed", prove_options_.seed, "seed of inputs, cotangents and directions")->type_name("N");
    gradients->add_option("--jobs", prove_options_.jobs, "threads; 0: as many as the machine has")
        ->type_name("N")
        ->check(CLI::Range(0, kMostJobs));
    gradients->add_option("--filter", prove_options_.filter, "only ops or parameters whose name fits")
        ->type_name("GLOB");
    gradients->footer("example: assay prove gradients delta_rule");
    prove_->footer("example: assay prove gradients delta_rule");
  }

  CLI::App app_{"assay: tells whether an implementation of GLM-5.3-Flash computes the right numbers", "assay"};
  CLI::App* verify_ = nullptr;
  CLI::App* eval_ = nullptr;
  CLI::App* list_ = nullptr;
  CLI::App* inspect_ = nullptr;
  CLI::App* prove_ = nullptr;
  VerifyOptions verify_options_;
  EvalOptions eval_options_;
  ListOptions list_options_;
  InspectOptions inspect_options_;
  ProveOptions prove_options_;
};

}  // namespace

void print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written && errno != EPIPE) {
    throw EnvironmentError(fmt::format("stdout: cannot write: {}", std::strerror(errno)));
  }
}

int run_program(const std::vector<std::string>& words) {
  try {
    return Program().run(words);
  } catch (const InputError& error) {
    return complain(error.what(), kBadInput);
  } catch (const EnvironmentError& error) {
    return complain(error.what(), kBadEnvironment);
  } catch (const std::bad_alloc&) {
    return complain("not enough memory", kBadEnvironment);
  }
}

}  // namespace assay::harness
