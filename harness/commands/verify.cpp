#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <set>

#include <fmt/format.h>
#include <unistd.h>

#include "cases/case_file.h"
#include "cases/error.h"
#include "harness/commands/commands.h"
#include "harness/glob.h"
#include "harness/gradients.h"
#include "harness/junit.h"
#include "harness/progress.h"
#include "harness/result_json.h"
#include "harness/table.h"
#include "harness/training.h"
#include "harness/vectors.h"
#include "harness/verify.h"
#include "reference/parallel.h"

#ifndef ASSAY_CASES_DIR
#define ASSAY_CASES_DIR "cases"
#endif

namespace assay::harness {
namespace {

const std::filesystem::path kDefaultNames = std::filesystem::path(ASSAY_CASES_DIR) / "names" / "transformers.json";
const std::filesystem::path kVectorMap = std::filesystem::path(ASSAY_CASES_DIR) / "vectors.json";

ScalarKind scalar_named(const std::string& name) {
  return name == "ball" ? ScalarKind::kBall : (name == "real" ? ScalarKind::kReal : ScalarKind::kDouble);
}

/// Refuses a checkpoint that the reference cannot run. Tensors that it does not need are no fault here.
void need_complete(const Checkpoint& checkpoint) {
  std::vector<TensorFault> faults = audit(checkpoint);
  std::erase_if(faults, [](const TensorFault& fault) { return fault.fault == "unexpected"; });
  if (faults.empty()) return;
  const TensorFault& first = faults.front();
  const std::string more =
      faults.size() == 1 ? "" : fmt::format(" (and {} more: assay inspect checkpoint)", faults.size() - 1);
  throw InputError(fmt::format("{}: tensor {}: {}", checkpoint.folder.string(), first.name, first.fault),
                   first.detail + more, "");
}

/// Finds before a long run what would keep its results from being written.
void need_writable(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (!std::filesystem::is_directory(folder))
    throw InputError(file.string(), "no folder " + folder.string(), "results are written into a folder that exists");
  if (std::filesystem::is_directory(file)) throw InputError(file.string(), "a folder", "a file name is needed");
}

Check skipped(const std::string& stage, const Recorded& recorded) {
  Check check;
  check.stage = stage;
  check.recorded = recorded.name;
  check.scope = "local";
  check.verdict = Verdict::kSkipped;
  check.reason = "the reference has no such stage";
  return check;
}

std::vector<Check> judge_trace(const std::filesystem::path& folder, const std::filesystem::path& trace_file,
                               const std::filesystem::path& gradients, const std::filesystem::path& names,
                               VerifySettings& settings) {
  const Checkpoint checkpoint = open_checkpoint(folder);
  need_complete(checkpoint);
  const Trace trace = read_trace(trace_file, names, checkpoint.config);
  const auto wanted = [&](const auto& stage) { return glob_match(settings.filter, stage.first); };
  std::vector<Check> checks;
  const bool any = std::any_of(trace.stages.begin(), trace.stages.end(), wanted);
  if (any) checks = verify_trace(checkpoint, trace, settings);
  if (!gradients.empty()) {
    const std::vector<Check> more =
        verify_gradients(checkpoint, trace, gradients, read_gradient_names(names, checkpoint), settings);
    checks.insert(checks.end(), more.begin(), more.end());
  }
  if (!any) return checks;
  std::set<std::string> judged;
  for (const Check& check : checks) judged.insert(check.stage);
  for (const auto& stage : trace.stages)
    if (wanted(stage) && !judged.count(stage.first)) checks.push_back(skipped(stage.first, stage.second.front()));
  return checks;
}

std::vector<Check> judge_training(const VerifyOptions& options, const std::filesystem::path& names,
                                  const VerifySettings& settings) {
  const Checkpoint checkpoint = open_checkpoint(options.checkpoint);
  need_complete(checkpoint);
  if (!options.curves.empty()) need_writable(options.curves);
  Curves curves;
  std::vector<Check> checks = verify_training(checkpoint, read_training_record(options.training),
                                              read_gradient_names(names, checkpoint), settings, curves);
  if (!options.curves.empty()) write_file_atomically(options.curves, to_golden(curves));
  return checks;
}

std::int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

}  // namespace

int run_verify(const VerifyOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (options.jobs > 0) reference::set_jobs(options.jobs);
  const std::string json_file = options.json.empty() ? kDefaultJson : options.json;
  const std::string junit_file = options.junit.empty() ? kDefaultJunit : options.junit;
  need_writable(json_file);
  need_writable(junit_file);
  VerifySettings settings;
  settings.scalar = scalar_named(options.scalar);
  settings.bits = options.bits;
  settings.filter = options.filter;
  settings.profile = options.rounding.profile;
  settings.flags = flags_of(options.rounding);
  Report report;
  report.command = to_command_line(options);
  report.scalar = options.scalar;
  {
    Progress progress(0);
    settings.progress = [&](const std::string& what) { progress.step(what); };
    if (!options.vectors.empty()) {
      report.title = std::filesystem::path(options.vectors).stem().string();
      report.scalar = "ball";  // single functions are cheap enough to be certified always
      settings.scalar = ScalarKind::kBall;
      report.checks = verify_vectors(options.vectors, kVectorMap, settings);
    } else if (!options.case_file.empty()) {
      const CaseFile given = read_case_file(options.case_file);
      report.title = given.name;
      report.checks = judge_trace(given.checkpoint, given.trace, {}, given.names, settings);
    } else {
      const std::filesystem::path names = options.names.empty() ? kDefaultNames : std::filesystem::path(options.names);
      if (!options.training.empty()) {
        report.title = std::filesystem::path(options.training).stem().string();
        report.scalar = "double";  // the records are runs in double, and so is the reference's
        settings.scalar = ScalarKind::kDouble;
        report.checks = judge_training(options, names, settings);
      } else {
        report.title = std::filesystem::path(options.trace).stem().string();
        report.checks = judge_trace(options.checkpoint, options.trace, options.gradients, names, settings);
      }
    }
  }
  if (report.checks.empty()) {
    throw InputError("--filter " + shell_quoted(options.filter), "no stage or case matches",
                     "`*` judges all; result.json of such a run names them");
  }
  report.bits = settings.bits;
  report.certainty = certainty_of(report.checks, settings);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.peak_memory_bytes = peak_memory_bytes();
  write_file_atomically(json_file, to_text(to_json(report)));
  write_file_atomically(junit_file, to_junit(report));
  Report shown = report;
  if (!options.vectors.empty()) shown.checks = by_group(report.checks);
  print(to_table(shown, wants_colour(STDOUT_FILENO)));
  print(report.last_line() + "\n");
  if (report.exit_status() != 0) print("reproduce: " + report.command + "\n");
  return report.exit_status();
}

}  // namespace assay::harness
