// The bundled small model (2 x 45 tokens), forward and backward in double on all cores: wall time, median (least to
// most), and the bytes of the values that the backward keeps.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "cases/case_file.h"
#include "catch.h"
#include "harness/trace.h"
#include "reference/model/model.h"
#include "reference/parallel.h"

#ifndef ASSAY_SOURCE_DIR
#define ASSAY_SOURCE_DIR "."
#endif

namespace assay::reference {
namespace {

constexpr int kRuns = 7;
constexpr double kMostSeconds = 2.0;

}  // namespace

TEST_CASE("kda_dsa_forward_and_backward_in_double") {
  const CaseFile file = read_case_file(std::filesystem::path(ASSAY_SOURCE_DIR) / "cases" / "kda_dsa.json");
  const Checkpoint checkpoint = open_checkpoint(file.checkpoint);
  const harness::Trace trace = harness::read_trace(file.trace, file.names, checkpoint.config);
  std::vector<double> seconds;
  std::int64_t saved = 0;
  for (int run = 0; run < kRuns; ++run) {
    Observer<double> nobody;
    const auto begin = std::chrono::steady_clock::now();
    saved = gradients<double>(checkpoint, trace.inputs, trace.conventions, LossOptions{}, nobody).saved_bytes;
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  std::printf("kda_dsa forward and backward, double, %d threads: %.3f s (%.3f to %.3f), saved tensors %.1f MiB\n",
              jobs(), median, seconds.front(), seconds.back(), static_cast<double>(saved) / 1048576.0);
  std::fflush(stdout);
  CHECK(median < kMostSeconds);
  CHECK(saved > 0);
}

}  // namespace assay::reference
