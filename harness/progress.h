// Where a long run is, on the terminal of stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace assay::harness {

/// One line "  [37/73] layers.6.dsa.out", rewritten at most ten times a second and erased at the end. Prints nothing if
/// stderr is no terminal. May be stepped from several threads.
class Progress {
 public:
  /// 0: how many there will be is not known, only the count is shown.
  explicit Progress(std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// The next of `total` begins.
  void step(const std::string& name);
  /// Removes the line, so that something else can be printed.
  void erase();

 private:
  std::mutex mutex_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  bool visible_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace assay::harness
