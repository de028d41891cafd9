// Matrix products: a plain loop over multiprecision numbers, Arb's kernels, and the reference. One core, nanoseconds of
// processor time per multiply-add, median (least to most) of kRuns runs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "reference/linear_algebra.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

constexpr int kRuns = 5;

/// Where the bits of the numbers come from: values of a format, or full mantissas.
enum class Bits { kBf16, kF32, kF64, kFull };
constexpr const char* kBitsNames[] = {"bf16", "f32", "f64", "full"};

struct Size {
  std::int64_t rows, columns, inner;
  double terms() const { return static_cast<double>(rows * columns * inner); }
};

std::string text(const Size& size) {
  return std::to_string(size.rows) + "x" + std::to_string(size.inner) + "x" + std::to_string(size.columns);
}

template <class T>
T number(Bits bits, std::mt19937_64& random) {
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53 - 0.5; };
  const double value = uniform();
  if (bits == Bits::kF64) return T(value);
  if (bits == Bits::kF32) return T(static_cast<double>(static_cast<float>(value)));
  if (bits == Bits::kBf16) return T(static_cast<double>(static_cast<std::int64_t>(value * 256.0)) / 256.0);
  T sum(value);
  for (int i = 0; i < 8; ++i) sum = sum * T(0x1p-53) + T(uniform());
  return sum;
}

template <class T>
Array<T> matrix(std::int64_t rows, std::int64_t columns, Bits bits) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rows * columns) + static_cast<std::uint64_t>(bits));
  Array<T> result({rows, columns});
  for (T& value : result.data) value = number<T>(bits, random);
  return result;
}

template <class Clock>
std::vector<double> seconds_of(const Clock& clock, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int run = 0; run < kRuns; ++run) {
    const double begin = clock();
    work();
    seconds.push_back(clock() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Prints a line and returns the median in nanoseconds per multiply-add; `plain` > 0 adds the ratio to it.
double report(const std::string& what, const Size& size, Bits bits, double plain, const std::function<void()>& work) {
  const std::vector<double> seconds = seconds_of(processor_seconds, work);
  const double unit = 1e9 / size.terms(), median = seconds[kRuns / 2] * unit;
  std::printf("%-34s %-14s %-5s %8.3f ns (%.3f to %.3f)", what.c_str(), text(size).c_str(),
              kBitsNames[static_cast<int>(bits)], median, seconds.front() * unit, seconds.back() * unit);
  if (plain > 0.0) std::printf("  %6.1f x", plain / median);
  std::printf("\n");
  std::fflush(stdout);
  return median;
}

template <class T>
void plain_loop(const Array<T>& x, const Array<T>& w) {
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    for (std::int64_t j = 0; j < w.dim(0); ++j) {
      T sum(0.0);
      for (std::int64_t k = 0; k < x.dim(1); ++k) sum += x.at(i, k) * w.at(j, k);
      volatile bool used = sum > 0;
      static_cast<void>(used);
    }
  }
}

template <class T>
void arb_dots(const Array<T>& x, const Array<T>& w) {
  for (std::int64_t i = 0; i < x.dim(0); ++i)
    for (std::int64_t j = 0; j < w.dim(0); ++j) dot(x.row(i, x.dim(1)), 1, w.row(j, x.dim(1)), 1, x.dim(1));
}

/// Arb's own matrix product of the same balls.
double report_arb(const Array<Ball>& x, const Array<Ball>& w, const Size& size, Bits bits, double plain) {
  arb_mat_t a, b, c;
  arb_mat_init(a, size.rows, size.inner);
  arb_mat_init(b, size.inner, size.columns);
  arb_mat_init(c, size.rows, size.columns);
  for (std::int64_t k = 0; k < size.inner; ++k) {
    for (std::int64_t i = 0; i < size.rows; ++i) arb_set(arb_mat_entry(a, i, k), x.at(i, k).data());
    for (std::int64_t j = 0; j < size.columns; ++j) arb_set(arb_mat_entry(b, k, j), w.at(j, k).data());
  }
  const double median = report("arb_mat_mul 256", size, bits, plain, [&] { arb_mat_mul(c, a, b, context().bits); });
  report("arb_mat_approx_mul 256", size, bits, plain, [&] { arb_mat_approx_mul(c, a, b, context().bits); });
  arb_mat_clear(a);
  arb_mat_clear(b);
  arb_mat_clear(c);
  return median;
}

Context with_bits(int bits) {
  Context result;
  result.bits = bits;
  return result;
}

}  // namespace

TEST_CASE("matmul_256_bits_against_the_plain_loop") {
  using Boost = boost::multiprecision::number<boost::multiprecision::mpfr_float_backend<77>>;
  set_jobs(1);
  const ContextScope scope(with_bits(256));
  for (const Bits bits : {Bits::kBf16, Bits::kF32, Bits::kF64, Bits::kFull}) {
    for (const Size size : {Size{256, 256, 256}, Size{64, 512, 4096}}) {
      const Size part{64, 16384 / size.inner, size.inner};  // of the same product, for the plain loops
      double plain = 0.0;
      {
        const Array<Boost> x = matrix<Boost>(part.rows, part.inner, bits);
        const Array<Boost> w = matrix<Boost>(part.columns, part.inner, bits);
        plain = report("plain loop, mpfr_float_backend<77>", part, bits, 0, [&] { plain_loop(x, w); });
      }
      {
        const Array<Real> x = matrix<Real>(part.rows, part.inner, bits);
        const Array<Real> w = matrix<Real>(part.columns, part.inner, bits);
        plain = std::min(plain, report("plain loop, mpfr_float_backend<0>", part, bits, 0, [&] { plain_loop(x, w); }));
      }
      const Array<Real> x = matrix<Real>(size.rows, size.inner, bits), w = matrix<Real>(size.columns, size.inner, bits);
      const double ours = report("matmul_nt<Real> 256", size, bits, plain, [&] { matmul_nt(x, w); });
      CHECK(plain / ours >= 20.0);
      const Array<Ball> a = matrix<Ball>(size.rows, size.inner, bits), b = matrix<Ball>(size.columns, size.inner, bits);
      report("matmul_nt<Ball> 256", size, bits, plain, [&] { matmul_nt(a, b); });
      report("arb_dot 256", size, bits, plain, [&] { arb_dots(a, b); });
      report_arb(a, b, size, bits, plain);
    }
  }
  set_jobs(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
}

TEST_CASE("matmul_of_the_other_scalars") {
  set_jobs(1);
  const ContextScope scope(with_bits(128));
  for (const Size size : {Size{256, 256, 256}, Size{64, 512, 4096}, Size{90, 64, 64}}) {
    const Array<double> x = matrix<double>(size.rows, size.inner, Bits::kF64);
    const Array<double> w = matrix<double>(size.columns, size.inner, Bits::kF64);
    report("matmul_nt<double>", size, Bits::kF64, 0, [&] { matmul_nt(x, w); });
    Array<Bound> u({size.rows, size.inner}), v({size.columns, size.inner});
    for (std::int64_t i = 0; i < u.size(); ++i) u[i] = {x[i], 1e-8};
    for (std::int64_t i = 0; i < v.size(); ++i) v[i] = w[i];
    report("matmul_nt<Bound>", size, Bits::kF64, 0, [&] { matmul_nt(u, v); });
    const Array<Ball> weights = matrix<Ball>(size.columns, size.inner, Bits::kF32);
    const Array<Ball> balls = matrix<Ball>(size.rows, size.inner, Bits::kFull);
    const double dots = report("arb_dot 128", size, Bits::kFull, 0, [&] { arb_dots(balls, weights); });
    report("matmul_nt<Ball> 128", size, Bits::kFull, dots, [&] { matmul_nt(balls, weights); });
  }
  set_jobs(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
}

TEST_CASE("matmul_on_all_cores") {
  const ContextScope scope(with_bits(256));
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const Array<Real> x = matrix<Real>(256, 1024, Bits::kFull), w = matrix<Real>(512, 1024, Bits::kFull);
  double one = 0.0;
  for (const int count : {1, cores}) {
    set_jobs(count);
    const std::vector<double> seconds = seconds_of(wall_seconds, [&] { matmul_nt(x, w); });
    if (count == 1) one = seconds[kRuns / 2];
    std::printf("matmul_nt<Real> 256x1024x512 full, %d threads: %.3f s (%.3f to %.3f), %.2f x\n", count,
                seconds[kRuns / 2], seconds.front(), seconds.back(), one / seconds[kRuns / 2]);
  }
}

TEST_CASE("matmul_benchmarks") {
  const ContextScope scope(with_bits(256));
  const Array<Real> x = matrix<Real>(256, 256, Bits::kF32), w = matrix<Real>(256, 256, Bits::kF32);
  BENCHMARK("matmul_nt<Real> 256 bits, 256x256x256, f32") { return matmul_nt(x, w); };
  const Array<Real> u = matrix<Real>(256, 256, Bits::kFull), v = matrix<Real>(256, 256, Bits::kFull);
  BENCHMARK("matmul_nt<Real> 256 bits, 256x256x256, full") { return matmul_nt(u, v); };
  const Array<double> a = matrix<double>(256, 256, Bits::kF64), b = matrix<double>(256, 256, Bits::kF64);
  BENCHMARK("matmul_nt<double>, 256x256x256") { return matmul_nt(a, b); };
}

}  // namespace assay::reference
