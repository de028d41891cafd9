#include "reference/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "reference/arb.h"
#include "reference/context.h"
#include "reference/real.h"

namespace assay::reference {
namespace {

thread_local bool inside_worker = false;

/// Threads that wait for work; they live until another number of threads is wanted.
class Pool {
 public:
  explicit Pool(int workers) {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { serve(); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int workers() const { return static_cast<int>(threads_.size()); }

  void run(std::int64_t count, const std::function<void(std::int64_t)>& body) {
    {
      std::lock_guard lock(mutex_);
      count_ = count;
      body_ = &body;
      next_ = 0;
      failed_at_ = count;
      failure_ = nullptr;
      context_ = context();
      digits_ = real_digits();
      busy_ = static_cast<int>(threads_.size());
      ++round_;
    }
    wake_.notify_all();
    inside_worker = true;
    work();
    inside_worker = false;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void work() {
    for (std::int64_t i = next_++; i < count_; i = next_++) {
      try {
        (*body_)(i);
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (i < failed_at_) {
          failed_at_ = i;
          failure_ = std::current_exception();
        }
      }
    }
  }

  void serve() {
    inside_worker = true;
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) break;
      seen = round_;
      context() = context_;
      if (real_digits() != digits_) set_real_digits(digits_);
      lock.unlock();
      work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
    flint_cleanup();
    mpfr_free_cache();
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  bool stop_ = false;
  std::uint64_t round_ = 0;
  int busy_ = 0;
  std::int64_t count_ = 0, failed_at_ = 0;
  std::atomic<std::int64_t> next_{0};
  const std::function<void(std::int64_t)>* body_ = nullptr;
  std::exception_ptr failure_;
  Context context_;
  unsigned digits_ = 0;
};

int wanted_jobs = 0;

/// Runs on a pool of jobs() threads, this one included; one caller at a time.
void run_on_pool(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  static std::mutex one_caller;
  static std::unique_ptr<Pool> pool;
  const std::lock_guard lock(one_caller);
  if (!pool || pool->workers() != jobs() - 1) {
    pool.reset();
    pool = std::make_unique<Pool>(jobs() - 1);
  }
  pool->run(count, body);
}

}  // namespace

void set_jobs(int count) { wanted_jobs = std::max(1, count); }

int jobs() {
  return wanted_jobs > 0 ? wanted_jobs : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  // Every i gets a stream of random numbers of its own, whoever computes it.
  const std::uint64_t base = context().stream + 0xD1B54A32D192ED03ULL;
  const std::function<void(std::int64_t)> seeded = [&](std::int64_t i) {
    context().stream = base ^ (static_cast<std::uint64_t>(i + 1) * 0x2545F4914F6CDD1DULL);
    body(i);
  };
  if (count <= 1 || inside_worker || jobs() == 1) {
    for (std::int64_t i = 0; i < count; ++i) seeded(i);
  } else {
    run_on_pool(count, seeded);
  }
  context().stream = base;
}

}  // namespace assay::reference
