// The reverse of Sinkhorn, through its scalings.
//
// The iterates are C_ij = B_ij x_i y_j (sinkhorn.cpp), and a step replaces one scaling, say y_j by y'_j = 1 / (sum_i
// B_ij x_i + eps / y_j). Let A_ij be the gradient with respect to B_ij through everything after the step, u_i = x_i
// (d/dx_i) and v_j = y_j (d/dy_j) those of the logarithms of the scalings. Differentiating the step,
//
//   A_ij -= v_j x_i y'_j      u_i -= sum_j C'_ij v_j      v_j := v_j k_j,  k_j = eps y'_j / y_j = 1 - sum_i C'_ij
//
// and the same with rows and columns exchanged. It starts with A_ij = G_ij x_i y_j, u_i = sum_j A_ij B_ij and v_j =
// sum_i A_ij B_ij for the cotangent G of C, and ends with the softmax: d_logits = P (A - sum_j A P).
//
// This is the reverse of M / (sum + eps), d = (d' - sum(d' M')) / (sum + eps), with A_ij = d_ij x_i y_j: v_j is the sum
// over the column of d' M'. Computing that sum from A again would double the radius of a ball at every step; carried
// along, u and v hand their radii on through C', whose columns (rows) sum to 1, so that radii add up.
//
// For Sampled, an implementation that works on d rounds at every step: d itself (division, difference and the sum of
// two parts) and the sum of d' M' (n products and additions, and the division). rounding_of stands for these, enters A,
// and u and v through A; it is 0 for the certified scalars. Bound: sinkhorn_bound.cpp.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "reference/ops/mhc_backward.h"
#include "reference/ops/sinkhorn_bound.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// A rounding of a value as large as x, without the value.
template <class T>
T rounding_of(const T& x) {
  const T largest(std::abs(midpoint(x)) + radius(x));
  return round_compute(largest) - largest;
}

/// One step of the forward: the scalings it leaves, the one it replaced, and its matrix.
template <class T>
struct Step {
  bool rows;
  std::vector<T> x, y, replaced, c;
};

template <class T>
class Reverse {
 public:
  Reverse(const T* logits, std::int64_t n, std::int64_t iterations, double eps)
      : n_(static_cast<std::size_t>(n)), eps_(constant<T>(eps)) {
    for (std::size_t i = 0; i < n_; ++i) softmax(logits + i * n_);
    b_ = p_;
    for (T& value : b_) value = value + eps_;
    std::vector<T> x(n_, T(1.0)), y(n_, T(1.0));
    for (std::int64_t iteration = 0; iteration < iterations; ++iteration) {
      if (iteration > 0) step(true, x, y);
      step(false, x, y);
    }
  }

  /// d_logits from the cotangent of the last matrix.
  void run(const std::vector<T>& d_matrix, T* d_logits) {
    a_.resize(n_ * n_);
    u_.assign(n_, T(0.0));
    v_.assign(n_, T(0.0));
    const Step<T>& last = steps_.back();
    for (std::size_t i = 0; i < n_; ++i)
      for (std::size_t j = 0; j < n_; ++j) a_[i * n_ + j] = d_matrix[i * n_ + j] * last.x[i] * last.y[j];
    const auto n = static_cast<std::ptrdiff_t>(n_);
    for (std::size_t i = 0; i < n_; ++i) {
      u_[i] = dot(a_.data() + i * n_, 1, b_.data() + i * n_, 1, n);
      v_[i] = dot(a_.data() + i, n, b_.data() + i, n, n);
    }
    for (auto s = steps_.rbegin(); s != steps_.rend(); ++s) back(*s);
    for (std::size_t i = 0; i < n_; ++i) {
      const T mean = dot(a_.data() + i * n_, 1, p_.data() + i * n_, 1, n);
      for (std::size_t j = 0; j < n_; ++j) d_logits[i * n_ + j] = p_[i * n_ + j] * (a_[i * n_ + j] - mean);
    }
  }

 private:
  void softmax(const T* logits) {
    double shift = midpoint(logits[0]);
    for (std::size_t j = 1; j < n_; ++j) shift = std::max(shift, midpoint(logits[j]));
    std::vector<T> powers;
    for (std::size_t j = 0; j < n_; ++j) powers.push_back(exp(logits[j] - T(shift)));
    const T one(1.0);
    const T sum = dot(powers.data(), 1, &one, 0, static_cast<std::ptrdiff_t>(n_));
    for (const T& power : powers) p_.push_back(power / sum);
  }

  void step(bool rows, std::vector<T>& x, std::vector<T>& y) {
    std::vector<T>& scale = rows ? x : y;
    const std::vector<T>& other = rows ? y : x;
    const auto n = static_cast<std::ptrdiff_t>(n_);
    Step<T> s{rows, {}, {}, scale, std::vector<T>(n_ * n_)};
    for (std::size_t i = 0; i < n_; ++i)
      scale[i] = T(1.0) / (dot(b_.data() + i * (rows ? n_ : 1), rows ? 1 : n, other.data(), 1, n) + eps_ / scale[i]);
    for (T& value : b_) value = round_at(point("sinkhorn.backward/iterate"), value);
    s.x = x;
    s.y = y;
    for (std::size_t i = 0; i < n_; ++i)
      for (std::size_t j = 0; j < n_; ++j) s.c[i * n_ + j] = b_[i * n_ + j] * x[i] * y[j];
    steps_.push_back(std::move(s));
  }

  void back(const Step<T>& s) {
    const auto n = static_cast<std::ptrdiff_t>(n_);
    const auto place = [&](std::size_t line, std::size_t across) {
      return s.rows ? line * n_ + across : across * n_ + line;
    };
    std::vector<T>& own = s.rows ? u_ : v_;
    std::vector<T>& others = s.rows ? v_ : u_;
    const std::vector<T>& scale = s.rows ? s.x : s.y;
    const std::vector<T>& other_scale = s.rows ? s.y : s.x;
    std::vector<T> whole(n_);
    for (std::size_t line = 0; line < n_; ++line) {
      T magnitude(0.0);
      for (std::size_t k = 0; k < n_; ++k)
        magnitude = magnitude + rounding_of(T(a_[place(line, k)] * b_[place(line, k)]));
      const T rounding = magnitude * T(static_cast<double>(n + kRoundingsOfSum));
      const T keep = eps_ * scale[line] / s.replaced[line];
      whole[line] = own[line] + rounding;
      own[line] = own[line] * keep - rounding * (T(1.0) - keep);
    }
    for (std::size_t line = 0; line < n_; ++line) {
      others[line] = others[line] - dot(s.c.data() + place(0, line), s.rows ? n : 1, whole.data(), 1, n);
      for (std::size_t k = 0; k < n_; ++k) {
        T& a = a_[place(line, k)];
        a = a - whole[line] * scale[line] * other_scale[k];
      }
    }
    for (std::size_t line = 0; line < n_; ++line)
      for (std::size_t k = 0; k < n_; ++k) {
        T& a = a_[place(line, k)];
        const T rounding = rounding_of(a) * T(kRoundingsOfElement);
        const T carried = rounding * b_[place(line, k)];
        a = a + rounding;
        own[line] = own[line] + carried;
        others[k] = others[k] + carried;
      }
  }

  static constexpr double kRoundingsOfElement = 3.0;
  static constexpr std::ptrdiff_t kRoundingsOfSum = 4;

  std::size_t n_;
  T eps_;
  std::vector<T> p_, b_;  ///< softmax, and softmax + eps
  std::vector<Step<T>> steps_;
  std::vector<T> a_, u_, v_;
};

}  // namespace

template <class T>
Array<T> sinkhorn_backward(const Array<T>& logits, std::int64_t iterations, double eps, const Array<T>& d_h_res,
                           const Array<T>& d_row_sums, const Array<T>& d_column_sums) {
  if (iterations < 1) {
    throw InputError("sinkhorn: attribute iterations", std::to_string(iterations), "at least 1 is needed");
  }
  const std::int64_t n = logits.dim(-1), values = n * n;
  Array<T> d_logits(logits.shape);
  if (d_h_res.size() + d_row_sums.size() + d_column_sums.size() == 0) return d_logits;
  parallel_for(logits.size() / values, [&](std::int64_t m) {
    std::vector<T> d(static_cast<std::size_t>(values), T(0.0));
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        T& here = d[static_cast<std::size_t>(i * n + j)];
        if (d_h_res.size()) here = d_h_res[m * values + i * n + j];
        if (d_row_sums.size()) here = here + d_row_sums[m * n + i];
        if (d_column_sums.size()) here = here + d_column_sums[m * n + j];
      }
    if constexpr (std::is_same_v<T, Bound>) {
      sinkhorn_backward_bound(logits.row(m, values), n, iterations, eps, d.data(), d_logits.row(m, values));
    } else {
      Reverse<T>(logits.row(m, values), n, iterations, eps).run(d, d_logits.row(m, values));
    }
  });
  return d_logits;
}

#define ASSAY_INSTANTIATE(T)                                                                                   \
  template Array<T> sinkhorn_backward(const Array<T>&, std::int64_t, double, const Array<T>&, const Array<T>&, \
                                      const Array<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
