// Checkpoints with the records of an independent implementation (shared/peer/README.md).
#pragma once

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "harness/trace.h"
#include "harness/verify.h"
#include "reference/parallel.h"

#ifndef ASSAY_SOURCE_DIR
#define ASSAY_SOURCE_DIR "."
#endif

namespace assay::harness {

struct RecordedCase {
  Checkpoint checkpoint;
  Trace trace;
};

/// cases/kda_dsa lies in the tree; the others in $ASSAY_PEER, or shared/peer in or beside the checkout.
inline std::filesystem::path case_folder(const std::string& name) {
  const std::filesystem::path source = ASSAY_SOURCE_DIR;
  if (name == "kda_dsa") return source / "cases" / name;
  if (const char* folder = std::getenv("ASSAY_PEER")) return std::filesystem::path(folder) / name;
  const std::filesystem::path inside = source / "shared" / "peer";
  return (std::filesystem::exists(inside) ? inside : source / ".." / "shared" / "peer") / name;
}

inline RecordedCase open_case(const std::filesystem::path& folder) {
  Checkpoint checkpoint = open_checkpoint(folder);
  Trace trace =
      read_trace(folder / "f64.safetensors",
                 std::filesystem::path(ASSAY_SOURCE_DIR) / "cases" / "names" / "transformers.json", checkpoint.config);
  return {std::move(checkpoint), std::move(trace)};
}

/// Skips the running test if the records are not there.
#define ASSAY_NEED_CASE(name)                                                                         \
  if (!std::filesystem::exists(::assay::harness::case_folder(name) / "f64.safetensors"))              \
  GTEST_SKIP() << "no recorded case " << ::assay::harness::case_folder(name) << "; set ASSAY_PEER to" \
               << " the folder that holds it"

/// A folder of its own for the running test.
inline std::filesystem::path test_folder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string(test->test_suite_name()) + "." + test->name();
  for (char& c : name)
    if (c == '/') c = '_';
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "assay_model" / name;
  std::filesystem::create_directories(folder);
  return folder;
}

/// One line of a check, for messages.
inline std::string line_of(const Check& check) {
  return check.scope + " " + check.stage + " (" + check.recorded + "): " + std::string(word(check.verdict)) +
         ", relative error " + std::to_string(check.relative_error * 1e15) + "e-15, share " +
         std::to_string(check.share) + (check.reason.empty() ? "" : "; " + check.reason);
}

/// Another number of threads for a scope.
class Jobs {
 public:
  explicit Jobs(int count) : saved_(reference::jobs()) { reference::set_jobs(count); }
  ~Jobs() { reference::set_jobs(saved_); }
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

 private:
  int saved_;
};

}  // namespace assay::harness
