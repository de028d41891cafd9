// The bundled small model (2 x 45 tokens) from the embedding to the logits, on all cores: wall time, median (least to
// most), and the peak memory of the program so far.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "cases/case_file.h"
#include "catch.h"
#include "harness/trace.h"
#include "reference/decide.h"
#include "reference/model/model.h"
#include "reference/parallel.h"

#ifndef ASSAY_SOURCE_DIR
#define ASSAY_SOURCE_DIR "."
#endif

namespace assay::reference {
namespace {

constexpr double kMostBytes = 1024.0 * 1024.0 * 1024.0;

struct Bundled {
  CaseFile file = read_case_file(std::filesystem::path(ASSAY_SOURCE_DIR) / "cases" / "kda_dsa.json");
  Checkpoint checkpoint = open_checkpoint(file.checkpoint);
  harness::Trace trace = harness::read_trace(file.trace, file.names, checkpoint.config);
};

double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024.0;
}

/// As the judge does it: decisions that stay unclear restart the pass at twice the precision. Returns the bits.
template <class T>
int forward_pass(const Bundled& bundled, Context wanted) {
  Observer<T> nobody;
  while (true) {
    const ContextScope scope(wanted);
    try {
      forward<T>(bundled.checkpoint, bundled.trace.inputs, bundled.trace.conventions, nobody);
      return wanted.bits;
    } catch (const Undecided&) {
      if (wanted.bits >= wanted.cap_bits) {
        wanted.ties_are_final = true;
      } else {
        wanted.bits *= 2;
      }
    }
  }
}

/// Median seconds of `runs` passes; prints a line.
template <class T>
double report(const char* scalar, int bits, int runs) {
  const Bundled bundled;
  Context wanted;
  wanted.bits = bits;
  std::vector<double> seconds;
  int reached = bits;
  for (int run = 0; run < runs; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    reached = forward_pass<T>(bundled, wanted);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  std::printf("kda_dsa forward, %s, %d bits (%d sufficed), %d threads: %.3f s (%.3f to %.3f), peak memory %.0f MiB\n",
              scalar, bits, reached, jobs(), median, seconds.front(), seconds.back(), peak_bytes() / 1048576.0);
  std::fflush(stdout);
  return median;
}

}  // namespace

TEST_CASE("kda_dsa_forward_in_double") {
  CHECK(report<double>("double", 53, 7) < 0.5);
  CHECK(peak_bytes() < kMostBytes);
}

TEST_CASE("kda_dsa_forward_in_ball") {
  CHECK(report<Ball>("Ball", 128, 3) < 15.0);
  CHECK(peak_bytes() < kMostBytes);
}

TEST_CASE("kda_dsa_forward_in_real") {
  report<Real>("Real", 256, 3);
  CHECK(peak_bytes() < kMostBytes);
}

}  // namespace assay::reference
