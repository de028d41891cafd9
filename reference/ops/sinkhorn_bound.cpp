// Sinkhorn contracts: an error made in one step is smaller after the next. Arithmetic on Bound cannot see that (errors
// of the 2 iterations - 1 steps and of their reverse add up, and in bf16 runs exceed the gradient itself), so that
// the first-order effect of every single rounding is taken through the rest of the computation, and the absolute values
// of these effects are added:
//
//   forward    each power of the softmax, each sum of a line, each rounded entry of each iterate: by repeating the
//              computation with that number changed (a secant; the gradient depends on it nonlinearly)
//   reverse    each entry of each gradient and each line sum: by the transposed steps (the reverse is linear in them)
//
// The computation is the plain one, d = (d' - sum(d' M')) / s on the matrices, in double.
#include "reference/ops/sinkhorn_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace assay::reference {
namespace {

using Matrix = std::vector<double>;

/// Roundings per entry of an iterate: a division, or a product with a rounded reciprocal.
constexpr double kEntryRoundings = 2.0;
/// Roundings per entry of a gradient: division, difference, and the sum of the parts that a framework keeps apart.
constexpr double kGradientRoundings = 3.0;
/// Roundings of a line sum besides its n terms: eps and its addition; in the reverse also the product and the division.
constexpr double kSumRoundings = 2.0, kGradientSumRoundings = 4.0;
/// Smallest relative change that a secant is taken over, and the room for its second-order part.
constexpr double kLeastChange = 0x1p-20;
constexpr double kInflation = 1.0 + 0x1p-8;

/// One change of the forward: the factor of a power, of a line sum, or of an entry of iterate `step` (0: softmax +
/// eps).
struct Change {
  enum class Of { kNothing, kPower, kSum, kEntry } of = Of::kNothing;
  std::size_t step = 0, index = 0;
  double factor = 1.0;
};

class Chain {
 public:
  Chain(Matrix logits, std::size_t n, std::size_t steps, double eps, Matrix cotangent)
      : n_(n), eps_(eps), steps_(steps), logits_(std::move(logits)), cotangent_(std::move(cotangent)) {
    iterates_.resize(steps + 1, Matrix(n * n));
    sums_.resize(steps + 1, Matrix(n));
    gradients_.resize(steps + 1, Matrix(n * n));
    p_.resize(n * n);
    result_.resize(n * n);
  }

  /// d_logits with one change. What lies before the changed step is kept from the last call, whose change must not lie
  /// before this one.
  const Matrix& run(const Change& change) {
    const bool from_start = change.of == Change::Of::kNothing || change.step == 0;
    if (from_start) softmax(change);
    for (std::size_t k = std::max<std::size_t>(change.step, 1); k <= steps_; ++k) forward(k, change);
    gradients_[steps_] = cotangent_;
    for (std::size_t k = steps_; k >= 1; --k) reverse(k);
    for (std::size_t i = 0; i < n_; ++i) {
      double mean = 0.0;
      for (std::size_t j = 0; j < n_; ++j) mean += gradients_[0][i * n_ + j] * p_[i * n_ + j];
      for (std::size_t j = 0; j < n_; ++j) result_[i * n_ + j] = p_[i * n_ + j] * (gradients_[0][i * n_ + j] - mean);
    }
    return result_;
  }

  std::size_t place(std::size_t step, std::size_t line, std::size_t across) const {
    return step % 2 == 0 ? line * n_ + across : across * n_ + line;  // odd steps divide columns
  }

  /// effect := effect of an entry of gradient `step` on the result, from that of gradient `step - 1`.
  void transpose_step(std::size_t step, Matrix& effect) const {
    for (std::size_t line = 0; line < n_; ++line) {
      double inner = 0.0;
      for (std::size_t a = 0; a < n_; ++a) inner += effect[place(step, line, a)];
      for (std::size_t a = 0; a < n_; ++a) {
        double& e = effect[place(step, line, a)];
        e = (e - iterates_[step][place(step, line, a)] * inner) / sums_[step][line];
      }
    }
  }

  const Matrix& gradient(std::size_t step) const { return gradients_[step]; }
  const Matrix& iterate(std::size_t step) const { return iterates_[step]; }
  const Matrix& sums(std::size_t step) const { return sums_[step]; }
  const Matrix& softmax() const { return p_; }

 private:
  static bool is(const Change& change, Change::Of of, std::size_t step, std::size_t index) {
    return change.of == of && change.step == step && change.index == index;
  }

  void softmax(const Change& change) {
    for (std::size_t i = 0; i < n_; ++i) {
      const double* row = logits_.data() + i * n_;
      const double shift = *std::max_element(row, row + n_);
      double sum = 0.0;
      for (std::size_t j = 0; j < n_; ++j) {
        double& power = p_[i * n_ + j];
        power = std::exp(row[j] - shift);
        if (is(change, Change::Of::kPower, 0, i * n_ + j)) power *= change.factor;
        sum += power;
      }
      if (is(change, Change::Of::kSum, 0, i)) sum *= change.factor;
      for (std::size_t j = 0; j < n_; ++j) {
        double& p = p_[i * n_ + j];
        p /= sum;
        iterates_[0][i * n_ + j] = p + eps_;
        if (is(change, Change::Of::kEntry, 0, i * n_ + j)) {
          p *= change.factor;
          iterates_[0][i * n_ + j] *= change.factor;
        }
      }
    }
  }

  void forward(std::size_t k, const Change& change) {
    for (std::size_t line = 0; line < n_; ++line) {
      double sum = eps_;
      for (std::size_t a = 0; a < n_; ++a) sum += iterates_[k - 1][place(k, line, a)];
      if (is(change, Change::Of::kSum, k, line)) sum *= change.factor;
      sums_[k][line] = sum;
      for (std::size_t a = 0; a < n_; ++a) {
        const std::size_t at = place(k, line, a);
        iterates_[k][at] = iterates_[k - 1][at] / sum;
        if (is(change, Change::Of::kEntry, k, at)) iterates_[k][at] *= change.factor;
      }
    }
  }

  void reverse(std::size_t k) {
    for (std::size_t line = 0; line < n_; ++line) {
      double inner = 0.0;
      for (std::size_t a = 0; a < n_; ++a) inner += gradients_[k][place(k, line, a)] * iterates_[k][place(k, line, a)];
      for (std::size_t a = 0; a < n_; ++a)
        gradients_[k - 1][place(k, line, a)] = (gradients_[k][place(k, line, a)] - inner) / sums_[k][line];
    }
  }

  std::size_t n_;
  double eps_;
  std::size_t steps_;
  Matrix logits_, cotangent_;
  std::vector<Matrix> iterates_, sums_, gradients_;  ///< by step; iterate 0 is the softmax + eps
  Matrix p_, result_;
};

}  // namespace

void sinkhorn_backward_bound(const Bound* logits, std::int64_t size, std::int64_t iterations, double eps,
                             const Bound* d_h_res, Bound* d_logits) {
  const auto n = static_cast<std::size_t>(size), values = n * n, steps = static_cast<std::size_t>(2 * iterations - 1);
  const double u = context().rounding.compute + 0x1p-53, terms = static_cast<double>(n);
  Matrix x(values), cotangent(values), power_error(values);
  for (std::size_t i = 0; i < n; ++i) {
    double shift = logits[i * n].v;
    for (std::size_t j = 1; j < n; ++j) shift = std::max(shift, logits[i * n + j].v);
    for (std::size_t j = 0; j < n; ++j) {
      const std::size_t at = i * n + j;
      x[at] = logits[at].v;
      cotangent[at] = d_h_res[at].v;
      const Bound power = exp(logits[at] - Bound(shift));
      power_error[at] = power.v > 0.0 ? power.e / power.v : 0.0;
    }
  }
  Chain chain(x, n, steps, eps, cotangent);
  const Matrix value = chain.run({});

  // The reverse and the end: d_logits = P (A - sum A P), A = gradient 0.
  Matrix error(values);
  const Matrix& p = chain.softmax();
  for (std::size_t out = 0; out < values; ++out) {
    const std::size_t row = out / n * n;
    Matrix effect(values);
    double row_size = 0.0;
    for (std::size_t j = 0; j < n; ++j) {
      effect[row + j] = p[out] * ((row + j == out ? 1.0 : 0.0) - p[row + j]);
      row_size += std::abs(chain.gradient(0)[row + j]) * p[row + j];
    }
    double e =
        u *
        (p[out] * ((terms + kGradientSumRoundings) * row_size + kGradientRoundings * std::abs(chain.gradient(0)[out])) +
         kGradientRoundings * std::abs(value[out]));
    for (std::size_t k = 1; k <= steps; ++k) {
      const Matrix& before = chain.gradient(k - 1);
      for (std::size_t at = 0; at < values; ++at)
        e += std::abs(effect[at] * before[at]) * (terms + kSumRoundings + kGradientRoundings) * u;
      for (std::size_t line = 0; line < n; ++line) {
        double inner_size = 0.0, line_effect = 0.0;
        for (std::size_t a = 0; a < n; ++a) {
          const std::size_t at = chain.place(k, line, a);
          inner_size += std::abs(chain.gradient(k)[at]) * chain.iterate(k)[at];
          line_effect += effect[at];
        }
        e += std::abs(line_effect) / chain.sums(k)[line] * inner_size * (terms + kGradientSumRoundings) * u;
      }
      chain.transpose_step(k, effect);
    }
    for (std::size_t at = 0; at < values; ++at) e += std::abs(effect[at]) * d_h_res[at].e;
    error[out] = e;
  }

  const auto add_effect = [&](Change::Of of, std::size_t step, std::size_t index, double relative_error) {
    if (!(relative_error > 0.0)) return;
    const double change = std::clamp(relative_error, kLeastChange, 0.5);
    const Matrix& changed = chain.run({of, step, index, 1.0 + change});
    for (std::size_t out = 0; out < values; ++out)
      error[out] += std::abs(changed[out] - value[out]) * (relative_error / change);
  };
  for (std::size_t k = steps + 1; k-- > 0;) {
    for (std::size_t at = 0; at < values; ++at) add_effect(Change::Of::kEntry, k, at, kEntryRoundings * u);
    for (std::size_t line = 0; line < n; ++line) add_effect(Change::Of::kSum, k, line, (terms + kSumRoundings) * u);
    if (k == 0)
      for (std::size_t at = 0; at < values; ++at) add_effect(Change::Of::kPower, 0, at, power_error[at]);
  }
  for (std::size_t out = 0; out < values; ++out) {
    const double e = (error[out] + context().rounding.tiny) * kInflation;
    d_logits[out] = {value[out], std::isnan(e) ? std::numeric_limits<double>::infinity() : e};
  }
}

}  // namespace assay::reference
