// The command line of `assay`.
#pragma once

#include <string>
#include <vector>

namespace assay::harness {

/// Runs `assay` with the words behind its name. Returns the exit status: 0 passed; 1 a verdict is FAIL, MISTRUSTED or
/// ERROR; 2 bad usage or bad input; 3 the environment cannot run it. Errors are one line "assay: ..." on stderr.
int run_program(const std::vector<std::string>& words);

}  // namespace assay::harness
