#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "cases/case_file.h"
#include "harness/commands/commands.h"
#include "harness/progress.h"
#include "harness/prove.h"
#include "harness/trace.h"
#include "reference/parallel.h"

#ifndef ASSAY_CASES_DIR
#define ASSAY_CASES_DIR "cases"
#endif

namespace assay::harness {
namespace {

std::string to_text(const std::vector<ProvedGradient>& proved) {
  std::size_t width = 0;
  for (const ProvedGradient& one : proved) width = std::max(width, one.name.size());
  std::string text = fmt::format("{:<{}} {:>9} {:>10}\n", "gradient", width, "elements", "deviation");
  for (const ProvedGradient& one : proved)
    text += fmt::format("{:<{}} {:>9} {:>10.2e}  {}\n", one.name, width, one.elements, one.deviation,
                        one.passed ? "PASS" : "FAIL  " + one.reason);
  return text;
}

}  // namespace

int run_prove_gradients(const ProveOptions& options) {
  if (options.jobs > 0) reference::set_jobs(options.jobs);
  ProofSettings settings;
  settings.bits = options.bits;
  settings.seed = static_cast<std::uint64_t>(options.seed);
  settings.filter = options.filter;
  std::vector<ProvedGradient> proved;
  {
    Progress progress(0);
    settings.progress = [&](const std::string& what) { progress.step(what); };
    if (std::filesystem::is_regular_file(options.what)) {
      const CaseFile given = read_case_file(options.what);
      const Checkpoint checkpoint = open_checkpoint(given.checkpoint);
      const Trace trace = read_trace(given.trace, given.names, checkpoint.config);
      proved = prove_model(checkpoint, trace.inputs, trace.conventions, settings);
    } else {
      const std::filesystem::path inputs = options.inputs.empty()
                                               ? std::filesystem::path(ASSAY_CASES_DIR) / "proofs.json"
                                               : std::filesystem::path(options.inputs);
      proved = prove_ops(inputs, options.what, settings);
    }
  }
  print(to_text(proved));
  std::int64_t failed = 0;
  double worst = 0.0;
  for (const ProvedGradient& one : proved) {
    failed += one.passed ? 0 : 1;
    worst = std::max(worst, one.deviation);
  }
  print(fmt::format("{}: {} of {} gradients within {:.0e} of central differences at {} bits (seed {}), worst {:.2e}\n",
                    failed == 0 && !proved.empty() ? "PASS" : "FAIL", proved.size() - static_cast<std::size_t>(failed),
                    proved.size(), settings.allowed, settings.bits, settings.seed, worst));
  return failed == 0 && !proved.empty() ? 0 : 1;
}

}  // namespace assay::harness
