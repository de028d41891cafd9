#include "reference/parallel.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/scalar.h"

namespace assay::reference {
namespace {

/// Another number of threads for one test.
class Jobs {
 public:
  explicit Jobs(int count) : saved_(jobs()) { set_jobs(count); }
  ~Jobs() { set_jobs(saved_); }
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

 private:
  int saved_;
};

/// How many bodies run at the same time if each waits, `patience` at most, until `wanted` have begun.
int together(int wanted, std::chrono::milliseconds patience) {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0, most = 0;
  parallel_for(wanted, [&](std::int64_t) {
    std::unique_lock lock(mutex);
    most = std::max(most, ++running);
    changed.notify_all();
    changed.wait_for(lock, patience, [&] { return most >= wanted; });
    --running;
  });
  return most;
}

TEST(ParallelFor, a_later_number_of_jobs_counts) {
  for (const int count : {2, 5, 1, 3}) {
    const Jobs scope(count);
    EXPECT_EQ(together(count, std::chrono::seconds(20)), count) << "threads";
    EXPECT_LE(together(count + 1, std::chrono::milliseconds(50)), count) << "no more threads than wanted";
  }
}

TEST(ParallelFor, less_than_one_job_is_one) {
  const Jobs scope(-3);
  EXPECT_EQ(jobs(), 1);
}

TEST(ParallelFor, every_index_is_visited_once) {
  for (const int count : {1, 2, 5}) {
    const Jobs scope(count);
    for (const std::int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<int> visits(static_cast<std::size_t>(n), 0);
      parallel_for(n, [&](std::int64_t i) { ++visits[static_cast<std::size_t>(i)]; });
      EXPECT_EQ(visits, std::vector<int>(static_cast<std::size_t>(n), 1));
    }
  }
}

TEST(ParallelFor, the_exception_of_the_smallest_index_arrives) {
  for (const int count : {1, 2, 5}) {
    const Jobs scope(count);
    for (int repeat = 0; repeat < 20; ++repeat) {
      try {
        parallel_for(200, [](std::int64_t i) {
          if (i % 7 == 3) throw std::runtime_error(std::to_string(i));
        });
        FAIL() << "nothing thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "3");
      }
    }
    int after = 0;
    parallel_for(1, [&](std::int64_t) { ++after; });
    EXPECT_EQ(after, 1) << "usable after an exception";
  }
}

TEST(ParallelFor, nested_calls_are_complete) {
  for (const int count : {1, 2, 5}) {
    const Jobs scope(count);
    std::vector<int> visits(30 * 40, 0);
    parallel_for(30, [&](std::int64_t i) {
      parallel_for(40, [&](std::int64_t j) { ++visits[static_cast<std::size_t>(i * 40 + j)]; });
    });
    EXPECT_EQ(visits, std::vector<int>(30 * 40, 1));
  }
}

TEST(ParallelFor, workers_get_the_callers_context_and_precision) {
  const Jobs scope(5);
  Context wanted;
  wanted.bits = 333;
  wanted.rounding.activation = 0x1p-8;
  const ContextScope context_scope(wanted);
  std::vector<int> bits(64), real_bits(64);
  std::vector<double> activation(64);
  parallel_for(64, [&](std::int64_t i) {
    const auto k = static_cast<std::size_t>(i);
    bits[k] = context().bits;
    activation[k] = context().rounding.activation;
    real_bits[k] = static_cast<int>(mpfr_get_prec(Real(1).backend().data()));
  });
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(bits[i], 333);
    EXPECT_EQ(activation[i], 0x1p-8);
    EXPECT_GE(real_bits[i], 333);
  }
}

TEST(ParallelFor, what_a_body_does_to_its_context_stays_there) {
  const Jobs scope(3);
  EXPECT_EQ(context().bits, 128);
  parallel_for(10, [](std::int64_t) { const BallBits wider(500); });
  EXPECT_EQ(context().bits, 128);
}

TEST(ParallelFor, random_streams_do_not_depend_on_the_number_of_jobs) {
  const auto draw = [](int count) {
    const Jobs scope(count);
    Context f32;
    f32.rounding.compute = 0x1p-24;
    f32.stream = 99;
    const ContextScope context_scope(f32);
    std::vector<double> values(200);
    for (int repeat = 0; repeat < 2; ++repeat)
      parallel_for(20, [&](std::int64_t i) {
        parallel_for(10, [&](std::int64_t j) {
          values[static_cast<std::size_t>(i * 10 + j)] += (Sampled(1.0) + Sampled(0.5)).v;
        });
      });
    values.push_back((Sampled(1.0) + Sampled(0.5)).v);  // and the caller's own stream afterwards
    return values;
  };
  const std::vector<double> alone = draw(1);
  EXPECT_EQ(draw(2), alone);
  EXPECT_EQ(draw(5), alone);
  EXPECT_NE(alone[0], alone[1]) << "rows have streams of their own";
}

}  // namespace
}  // namespace assay::reference
