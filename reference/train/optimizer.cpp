#include "reference/train/optimizer.h"

#include <cmath>

namespace assay::reference {
namespace {

constexpr double kClipEps = 1e-6;
constexpr double kPi = 3.14159265358979323846;

template <class T>
T squares(const Array<T>& x) {
  return dot(x.data.data(), 1, x.data.data(), 1, x.size());
}

/// base^n by repeated squaring.
template <class T>
T power(T base, std::int64_t n) {
  T result(1.0);
  for (; n > 0; n >>= 1) {
    if (n & 1) result = result * base;
    base = base * base;
  }
  return result;
}

}  // namespace

template <class T>
T gradient_norm(const Tensors<T>& gradients) {
  T sum(0.0);
  for (const auto& [name, gradient] : gradients) sum = sum + squares(gradient);
  return sqrt(sum);
}

template <class T>
std::map<std::string, T> gradient_norms(const Tensors<T>& gradients, const std::vector<std::string>& groups) {
  std::map<std::string, T> norms;
  for (const std::string& group : groups) {
    Tensors<T> members;
    for (const auto& [name, gradient] : gradients)
      if (name.find(group) != std::string::npos) members.emplace(name, gradient);
    norms.emplace(group, gradient_norm(members));
  }
  return norms;
}

template <class T>
std::int64_t num_zeros(const Tensors<T>& gradients) {
  std::int64_t count = 0;
  for (const auto& [name, gradient] : gradients)
    for (const T& value : gradient.data)
      if (midpoint(value) == 0.0 && radius(value) == 0.0) ++count;
  return count;
}

template <class T>
T clip_factor(const T& norm, double max_norm) {
  if (max_norm == 0.0) return T(1.0);
  return clamp_above(T(constant<T>(max_norm) / (norm + constant<T>(kClipEps))), 1.0);
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (kind == Kind::kConstant) return lr;
  if (step >= decay_steps) return min_lr;
  const double part = static_cast<double>(step - warmup) / static_cast<double>(decay_steps - warmup);
  return min_lr + 0.5 * (1.0 + std::cos(kPi * part)) * (lr - min_lr);
}

template <class T>
void adamw(Array<T>& parameter, const Array<T>& gradient, Moments<T>& moments, std::int64_t t,
           const AdamWSettings& settings) {
  ASSAY_CHECK(parameter.size() == gradient.size());
  if (moments.first.size() == 0) moments = {Array<T>(parameter.shape), Array<T>(parameter.shape)};
  const T one(1.0), lr = constant<T>(settings.lr), beta1 = constant<T>(settings.beta1),
                    beta2 = constant<T>(settings.beta2);
  const bool decays = parameter.shape.size() >= 2 && settings.weight_decay != 0.0;
  const T keep = decays ? T(one - lr * constant<T>(settings.weight_decay)) : one;
  const T step = lr / (one - power(beta1, t)), root = sqrt(one - power(beta2, t));
  for (std::int64_t i = 0; i < parameter.size(); ++i) {
    T& m = moments.first[i];
    T& v = moments.second[i];
    m = beta1 * m + (one - beta1) * gradient[i];
    v = beta2 * v + (one - beta2) * gradient[i] * gradient[i];
    parameter[i] = parameter[i] * keep - step * m / (sqrt(v) / root + constant<T>(settings.eps));
  }
}

#define ASSAY_INSTANTIATE(T)                                                                            \
  template T gradient_norm(const Tensors<T>&);                                                          \
  template std::map<std::string, T> gradient_norms(const Tensors<T>&, const std::vector<std::string>&); \
  template std::int64_t num_zeros(const Tensors<T>&);                                                   \
  template T clip_factor(const T&, double);                                                             \
  template void adamw(Array<T>&, const Array<T>&, Moments<T>&, std::int64_t, const AdamWSettings&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
