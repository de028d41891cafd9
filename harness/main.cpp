// `assay`: see harness/program.h.
#include <csignal>

#include "harness/program.h"

int main(int argc, char** argv) {
  // A reader that goes away (assay ... | head) must not kill a run that still has files to write.
  std::signal(SIGPIPE, SIG_IGN);
  return assay::harness::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
