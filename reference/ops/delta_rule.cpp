// Every value column s of the state obeys a recurrence of its own,
//   s_t = F(s_{t-1}),   F(x) = (I - beta k k^T) D x + beta v k,   D = diag(exp g).
//
// ENCLOSURE (Ball). A column is carried as exact midpoints m and one number E with |s - m|_2 <= E, because radii
// carried per element would grow by up to 1 + beta |k|_1 |k|_inf a token. One step evaluates F on the POINT m with the
// operands' balls, which gives a ball b_d per element that holds F(m)_d for all operands in their balls, roundings
// included. With m'_d = mid(b_d), and F affine,
//   |F(s) - m'|_2 <= |F(s) - F(m)|_2 + |F(m) - m'|_2 <= |I - beta k k^T|_2 max_d(exp g_d) E + |rad(b)|_2 =: E'.
// I - beta k k^T is symmetric with eigenvalues 1 and 1 - beta |k|^2: its norm is at most max(1, |1 - beta |k|^2|),
// which is 1 for 0 <= beta |k|^2 <= 2. The output is read on the point m: |q^T s - q^T m| <= |q|_2 E. A state element
// is within E of its midpoint.
//
// PERMITTED ERROR (Bound). The same with m the value and E a bound on |s~ - m|_2 for the column s~ of any
// implementation that evaluates the recurrence in the compute format, in any order of the sum over K, beta multiplied
// into k or into v - S'^T k. Evaluating F on m in Bound arithmetic counts every rounding at the intermediate values
// that belong to m. At s~ = m + z the intermediates are larger by those of the linear part x -> (I - beta k k^T) D x at
// z, and a rounding is bounded by u times its intermediate. A term of that linear part, D z or beta k (k^T D z), passes
// at most n = K + 5 roundings (decay 1, dot K, subtraction, two products, addition), so they add at most
//   gamma_n (1 + beta |k|^2) max_d(exp g_d) E,   gamma_n = n u / (1 - n u).
// The read adds gamma_{K+1} |q|_2 E likewise.
#include "reference/ops/delta_rule.h"

#include <string>
#include <type_traits>

#include "reference/ops/delta_rule_columns.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

template <class T>
struct Token {
  const T *q, *k, *v;
  std::vector<T> decay;
  T beta;
};

/// F, in place on one column.
template <class T>
void advance(T* column, const T& v, const Token<T>& token, std::int64_t K) {
  for (std::int64_t d = 0; d < K; ++d) column[d] *= token.decay[static_cast<std::size_t>(d)];
  const T delta = token.beta * (v - dot(column, 1, token.k, 1, K));
  for (std::int64_t d = 0; d < K; ++d) column[d] += token.k[d] * delta;
}

/// The state of one value head of one document, by columns. double and Real: plain values.
template <class T>
class State {
 public:
  State(std::int64_t K, std::int64_t V, const T* initial) : K_(K), V_(V), columns_({V, K}) {
    if (initial == nullptr) return;
    for (std::int64_t e = 0; e < V; ++e) {
      for (std::int64_t d = 0; d < K; ++d) columns_.at(e, d) = initial[d * V + e];
    }
  }
  void step(const Token<T>& token) {
    for (std::int64_t e = 0; e < V_; ++e) advance(columns_.row(e, K_), token.v[e], token, K_);
  }
  /// column e times q
  T read(const Token<T>& token, std::int64_t e) const { return dot(columns_.row(e, K_), 1, token.q, 1, K_); }
  T element(std::int64_t d, std::int64_t e) const { return columns_.at(e, d); }

 protected:
  std::int64_t K_, V_;
  Array<T> columns_;
};

/// Ball and Bound: points with an error norm per column (the derivation above).
template <class T>
class EnclosedState : State<T> {
 public:
  EnclosedState(std::int64_t K, std::int64_t V, const T* initial)
      : State<T>(K, V, initial), errors_(static_cast<std::size_t>(V)) {
    for (std::int64_t e = 0; e < V; ++e) error(e) = take_errors(e);
  }
  void step(const Token<T>& token) {
    Upper decay;
    for (const T& a : token.decay) decay = larger(decay, magnitude(a));
    const Upper beta_k2 = magnitude(token.beta) * square(norm_of(token.k, this->K_));
    const T eigenvalue = T(1.0) - token.beta * dot(token.k, 1, token.k, 1, this->K_);
    const Upper growth =
        decay * (larger(Upper(1.0), magnitude(eigenvalue)) + gamma_of<T>(this->K_ + 5) * (Upper(1.0) + beta_k2));
    query_norm_ = norm_of(token.q, this->K_) * (Upper(1.0) + gamma_of<T>(this->K_ + 1));
    for (std::int64_t e = 0; e < this->V_; ++e) {
      advance(this->columns_.row(e, this->K_), token.v[e], token, this->K_);
      error(e) = growth * error(e) + take_errors(e);
    }
  }
  /// After step(token) of the same token.
  T read(const Token<T>& token, std::int64_t e) const {
    return widened(State<T>::read(token, e), query_norm_ * errors_[static_cast<std::size_t>(e)]);
  }
  T element(std::int64_t d, std::int64_t e) const {
    return widened(State<T>::element(d, e), errors_[static_cast<std::size_t>(e)]);
  }

 private:
  static Upper square(const Upper& x) { return x * x; }
  Upper& error(std::int64_t e) { return errors_[static_cast<std::size_t>(e)]; }
  /// The norm of the radii of column e, which becomes points.
  Upper take_errors(std::int64_t e) {
    Upper sum;
    for (std::int64_t d = 0; d < this->K_; ++d) sum.add_square(take_radius(this->columns_.at(e, d)));
    return root(sum);
  }

  std::vector<Upper> errors_;
  Upper query_norm_;
};

template <class T>
using StateOf = std::conditional_t<std::is_same_v<T, Ball> || std::is_same_v<T, Bound>, EnclosedState<T>, State<T>>;

}  // namespace

DeltaRuleSizes delta_rule_sizes(const Shape& q, const Shape& v, const Shape& initial_state, const Index& cu_seqlens) {
  ASSAY_CHECK(q.size() == 3 && v.size() == 3 && q[0] == v[0]);
  const std::int64_t heads = q[1], value_heads = v[1];
  if (heads == 0 || value_heads % heads != 0)
    throw InputError("delta_rule v",
                     std::to_string(value_heads) + " value heads for " + std::to_string(heads) + " key heads",
                     "a multiple of the key heads");
  DeltaRuleSizes sizes{q[0], value_heads, value_heads / heads, q[2], v[2], documents_of(cu_seqlens, q[0])};
  const Shape states{static_cast<std::int64_t>(sizes.documents.size()), value_heads, q[2], v[2]};
  if (element_count(initial_state) != 0 && initial_state != states)
    throw InputError("delta_rule initial_state", "shape " + assay::to_string(initial_state),
                     "one state per document, " + assay::to_string(states));
  return sizes;
}

template <class T>
DeltaRule<T> delta_rule(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Array<T>& g,
                        const Array<T>& beta, const Array<T>& initial_state, const Index& cu_seqlens,
                        std::optional<double> scale) {
  const DeltaRuleSizes sizes = delta_rule_sizes(q.shape, v.shape, initial_state.shape, cu_seqlens);
  const std::int64_t K = sizes.key_dim, V = sizes.value_dim, Hv = sizes.value_heads, H = Hv / sizes.group;
  const auto count = static_cast<std::int64_t>(sizes.documents.size());
  const T factor = query_scale<T>(scale, K);
  DeltaRule<T> result{Array<T>(v.shape), Array<T>({count, Hv, K, V})};

  parallel_for(count * Hv, [&](std::int64_t row) {
    const Document& document = sizes.documents[static_cast<std::size_t>(row / Hv)];
    const std::int64_t h = row % Hv, key_head = h / sizes.group;
    StateOf<T> state(K, V, initial_state.size() ? initial_state.row(row, K * V) : nullptr);
    for (std::int64_t t = document.begin; t < document.end; ++t) {
      Token<T> token{q.row(t * H + key_head, K), k.row(t * H + key_head, K), v.row(t * Hv + h, V), {}, beta.at(t, h)};
      for (std::int64_t d = 0; d < K; ++d) token.decay.push_back(exp(g.at(t, h, d)));
      state.step(token);
      for (std::int64_t e = 0; e < V; ++e) result.o.at(t, h, e) = round_at(point("delta_rule/o"), factor * state.read(token, e));
    }
    T* final_state = result.final_state.row(row, K * V);
    for (std::int64_t d = 0; d < K; ++d) {
      for (std::int64_t e = 0; e < V; ++e) final_state[d * V + e] = state.element(d, e);
    }
  });
  return result;
}

#define ASSAY_INSTANTIATE(T)                                                                           \
  template DeltaRule<T> delta_rule(const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&, \
                                   const Array<T>&, const Array<T>&, const Index&, std::optional<double>);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
