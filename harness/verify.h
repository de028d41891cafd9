// The main job: judging recorded activations of an implementation against the reference.
#pragma once

#include <functional>
#include <string>

#include "cases/checkpoint.h"
#include "cases/flags.h"
#include "harness/result.h"
#include "harness/trace.h"

namespace assay::harness {

enum class ScalarKind { kDouble, kReal, kBall };

struct VerifySettings {
  ScalarKind scalar = ScalarKind::kDouble;
  int bits = 128;            ///< working precision of real and ball
  std::string filter = "*";  ///< only stages that match are judged
  std::string profile;       ///< of the rounding contract (cases/contract.h); empty: what the recorded dtypes imply
  Flags flags = Flags::glm();
  std::function<void(const std::string& what)> progress = [](const std::string&) {};
};

/// Judges every mapped record twice:
///   local       each stage computed from the records of the stages before it; per element, against the error that an
///               implementation may make between those records under the dtypes it recorded (scalar Bound);
///   end to end  from the inputs alone; per tensor (2-norm), against the spread of an ensemble of forward passes in
///   which every
///               stage is disturbed at random by as much as its local limit (see verify_trace.cpp).
/// Choices are compared as sets; end to end the recorded choice is followed where it is a legal outcome of an exact
/// tie.
std::vector<Check> verify_trace(const Checkpoint& checkpoint, const Trace& trace, VerifySettings& settings);

/// The settings' contract with this activation dtype, or what the dtype alone implies.
reference::RoundingModel rounding_of(const VerifySettings& settings, DType activation);

/// The same with the activation dtype that an implementation used, from what it recorded: the coarsest real dtype.
reference::RoundingModel rounding_of(const VerifySettings& settings, const Trace& trace);

/// How sure the reference was, one clause for the last line.
std::string certainty_of(const std::vector<Check>& checks, const VerifySettings& settings);

}  // namespace assay::harness
