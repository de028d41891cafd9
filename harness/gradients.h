// Recorded gradients of the loss against the reference's backward.
#pragma once

#include <filesystem>

#include "harness/trace.h"
#include "harness/verify.h"

namespace assay::harness {

/// How recorded gradients are named: part "gradients" of a map of names. A recorded tensor holds the gradients of
/// several checkpoint tensors one after the other (per_expert: for each expert in turn); tensors that no rule names are
/// recorded under their own name.
struct GradientNames {
  struct Group {
    std::string recorded;              ///< without the prefix
    std::vector<std::string> tensors;  ///< checkpoint tensors, in order
  };
  std::string prefix;
  std::vector<Group> groups;
};

/// The groups of every tensor of the checkpoint. Throws InputError if the map has no part "gradients" or it is
/// malformed.
GradientNames read_gradient_names(const std::filesystem::path& map_file, const Checkpoint& checkpoint);

/// Judges every recorded gradient by 2-norm against the ensemble (harness/ensemble.h), with the recorded choices
/// followed where they resolve an exact tie in another legal way; one more check compares the set of parameters without
/// gradient with the recorded one.
std::vector<Check> verify_gradients(const Checkpoint& checkpoint, const Trace& trace,
                                    const std::filesystem::path& gradient_file, const GradientNames& names,
                                    VerifySettings& settings);

}  // namespace assay::harness
