// Limits by ensemble, for what is too long to propagate worst cases through.
//
// Worst cases grow like the product of all operator norms; through several layers they say nothing. The reference's
// text is executed n times (kEnsemble unless stated) in Monte Carlo arithmetic (scalar Sampled, seeded) under the same
// rounding model instead. Let d_1 .. d_n be the 2-norms of the deviations from the undisturbed values, r their root
// mean square. The deviation of a single number is symmetric about zero, so one more draw stays below t r, with
// Student's t at n degrees of freedom, with confidence 1 - kDoubt; the norm of many numbers is only more concentrated.
#pragma once

#include <cstddef>
#include <vector>

#include "harness/judge.h"

namespace assay::harness {

inline constexpr int kEnsemble = 8;
inline constexpr std::uint64_t kEnsembleSeed = 20260820;
inline constexpr double kDoubt = 1e-6;

/// A tensor of the reference as the norm comparison needs it.
struct Kept {
  Truth truth;
  std::vector<double> middle;
};

template <class T>
Kept kept(const reference::Array<T>& value) {
  Kept result{truth_of(value), {}};
  for (const T& v : value.data) result.middle.push_back(reference::midpoint(v));
  return result;
}

/// The context of one member of the ensemble.
reference::Context member(const reference::Context& wanted, int run);

/// t over the magnification of the samples: what a root mean square over that many members is multiplied by.
double ensemble_factor(std::size_t members = kEnsemble);

/// 2-norms, special values left out.
double norm(const std::vector<double>& values);
double norm_of_difference(const std::vector<double>& a, const std::vector<double>& b);

/// A propagated limit that has lost more than half of the digits of the coarsest format of context().rounding.
bool says_nothing(const std::vector<double>& limits, const Kept& stage);

/// Largest radius over the largest magnitude; 0 for a tensor of zeros known exactly.
double widest_radius(const Kept& stage);

/// Judges a whole tensor by the 2-norms of its deviation and of the ensemble's (one per member, any number of members).
/// MISTRUSTED if zeros would have passed.
Check judge_norm(const Tensor& observed, const Kept& stage, const std::vector<double>& deviations);

}  // namespace assay::harness
