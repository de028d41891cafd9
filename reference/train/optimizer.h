// The optimizer of the training step: gradient norm, clipping, AdamW, learning-rate schedule. Sources:
// shared/spec/megatron.md 10 and 8.1 (settings of the public runs), ops.md (grad_norm, clip, num_zeros, adamw); AdamW
// as Loshchilov and Hutter, decay decoupled.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/array.h"

namespace assay::reference {

template <class T>
using Tensors = std::map<std::string, Array<T>>;

/// 2-norm of all gradients, summed tensor by tensor in name order.
template <class T>
T gradient_norm(const Tensors<T>& gradients);

/// Norms of named groups: a tensor belongs to every group whose text occurs in its name.
template <class T>
std::map<std::string, T> gradient_norms(const Tensors<T>& gradients, const std::vector<std::string>& groups);

/// Elements that are exactly zero.
template <class T>
std::int64_t num_zeros(const Tensors<T>& gradients);

/// min(1, max_norm / (norm + 1e-6)); 1 if max_norm is 0 (no clipping).
template <class T>
T clip_factor(const T& norm, double max_norm);

struct AdamWSettings {
  double lr = 0.0;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;          ///< added to the root of the corrected second moment
  double weight_decay = 0.0;  ///< on tensors with two or more dimensions
};

/// lr at a step counted from 0: linear warm-up over `warmup` steps, then a cosine from `lr` to `min_lr` at
/// `decay_steps`.
struct Schedule {
  enum class Kind { kConstant, kCosine } kind = Kind::kConstant;
  double lr = 0.0, min_lr = 0.0;
  std::int64_t warmup = 0, decay_steps = 0;
  double at(std::int64_t step) const;
};

/// Moments of one parameter.
template <class T>
struct Moments {
  Array<T> first, second;
};

/// p <- p (1 - lr wd); m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2;
/// p <- p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps), t counted from 1.
template <class T>
void adamw(Array<T>& parameter, const Array<T>& gradient, Moments<T>& moments, std::int64_t t,
           const AdamWSettings& settings);

}  // namespace assay::reference
