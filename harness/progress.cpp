#include "harness/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include <fmt/format.h>

namespace assay::harness {
namespace {

constexpr std::chrono::milliseconds kInterval{100};
constexpr std::size_t kUsualColumns = 80;

/// A longer line would wrap, and then only its last part could be erased.
std::size_t columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
  return size.ws_col;
}

}  // namespace

Progress::Progress(std::int64_t total) : total_(total), visible_(::isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { erase(); }

void Progress::step(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++done_;
  if (!visible_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kInterval;
  const std::string count = total_ > 0 ? fmt::format("{}/{}", done_, total_) : std::to_string(done_);
  const std::string line = fmt::format("  [{}] {}", count, name).substr(0, columns() - 1);
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void Progress::erase() {
  const std::lock_guard lock(mutex_);
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace assay::harness
