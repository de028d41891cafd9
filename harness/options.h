// Options of `assay verify`: parsed and printed by the same file, so that parse(print(options)) == options.
#pragma once

#include <string>
#include <vector>

#include "cases/flags.h"

namespace CLI {
class App;
}

namespace assay::harness {

inline constexpr const char* kDefaultJson = "result.json";
inline constexpr const char* kDefaultJunit = "junit.xml";
inline constexpr int kLeastBits = 53;
inline constexpr int kMostBits = 65536;
inline constexpr int kMostJobs = 1024;

/// Which rounding contract an implementation is held to (cases/contract.h).
struct ContractOptions {
  std::string profile;             ///< megatron | hf | serving; empty: what the recorded dtypes imply
  std::vector<std::string> flags;  ///< "name=value", on top of GLM-5.3-Flash's values (cases/flags.h)

  bool operator==(const ContractOptions&) const = default;
};

/// What to judge is one of: a case file; a checkpoint and a trace, with its gradients if there are any; a checkpoint
/// and the record of a training run; a vector file. A name map is needed if the names are not those of
/// cases/names/transformers.json.
struct VerifyOptions {
  std::string case_file, checkpoint, trace, gradients, training, vectors, names;
  std::string curves;           ///< with training: file for the reference's curves, in the layout of golden files
  std::string scalar = "ball";  ///< double | real | ball
  int bits = 128;               ///< working precision of real and ball
  int jobs = 0;                 ///< threads; 0: as many as the machine has
  std::string filter = "*";     ///< GLOB of stage names
  std::string json, junit;      ///< files to write; empty: kDefaultJson, kDefaultJunit
  ContractOptions rounding;

  bool operator==(const VerifyOptions&) const = default;
};

/// One word of a POSIX shell: quoted if it has to be.
std::string shell_quoted(const std::string& word);

/// "assay verify ...": the line that repeats the run. Options with their default values are left out.
std::string to_command_line(const VerifyOptions& options);

/// Reads the words behind `assay verify`. Throws InputError for unknown options, values out of range and inputs that
/// contradict each other.
VerifyOptions parse_verify(const std::vector<std::string>& words);

/// The parts of parse_verify, for the program's own parser.
void add_verify_options(CLI::App& command, VerifyOptions& options);
void check_verify_options(const VerifyOptions& options);
/// Adds --scalar and --bits, checked.
void add_precision_options(CLI::App& command, std::string& scalar, int& bits);
/// Adds --profile and --flag, checked.
void add_contract_options(CLI::App& command, ContractOptions& options);
/// GLM-5.3-Flash's flags with the options' changes. Throws InputError for an unknown flag, a bad value, or a refused
/// combination.
Flags flags_of(const ContractOptions& options);
/// Parses words in order; what CLI11 finds wrong becomes an InputError of one line. Requests for help and version pass
/// through as CLI::CallForHelp and CLI::CallForVersion.
void parse_words(CLI::App& app, const std::vector<std::string>& words);

}  // namespace assay::harness
