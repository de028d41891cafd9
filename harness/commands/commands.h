// The subcommands of `assay`. Each returns the exit status of the program: 0 all is well, 1 something was found to be
// wrong. Bad input is thrown as InputError (status 2), a machine that cannot run it as EnvironmentError (status 3).
#pragma once

#include <string>
#include <vector>

#include "harness/options.h"

namespace assay::harness {

struct EvalOptions {
  std::string op;
  std::string file;              ///< {"inputs", "attributes", "dtypes"}; "-" is stdin
  std::vector<std::string> set;  ///< "name=value": attributes that replace those of the file
  std::string scalar = "ball";
  int bits = 128;
  int digits = 17;
};
inline constexpr int kMostDigits = 10000;

struct ListOptions {
  std::string what = "cases";  ///< cases | ops | formats | flags
  std::string name;            ///< one op
  bool contract = false;       ///< the rounding contract of each op
  ContractOptions rounding;    ///< of which profile; none: all
  bool json = false;
  std::string cases;  ///< folder; empty: the one beside the source tree, else ./cases
};

struct InspectOptions {
  std::string folder;
  bool json = false;
  bool tensors = false;  ///< every tensor, not only the totals
};

struct ProveOptions {
  std::string what;    ///< an op, a case file, or nothing: all ops of the proof file
  std::string inputs;  ///< proof file; empty: cases/proofs.json
  int bits = 256;
  int seed = 1;
  int jobs = 0;
  std::string filter = "*";
};

/// Compares backwards with central differences of their forwards; 1 if one deviates.
int run_prove_gradients(const ProveOptions& options);
/// Judges an implementation (design section 7); 1 if a verdict is FAIL, MISTRUSTED or ERROR.
int run_verify(const VerifyOptions& options);
/// Evaluates one op on inputs from a JSON file and prints its outputs as JSON.
int run_eval(const EvalOptions& options);
/// Prints what there is: cases, ops or number formats.
int run_list(const ListOptions& options);
/// Prints what a checkpoint holds; 1 if a tensor is missing, unexpected, or of the wrong dtype or shape.
int run_inspect_checkpoint(const InspectOptions& options);

/// Writes to stdout. A reader that went away is no error; a full disk throws EnvironmentError.
void print(const std::string& text);

}  // namespace assay::harness
