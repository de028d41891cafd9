// What an evaluation depends on besides its operands. Thread-local; parallel_for hands it to its workers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cases/formats.h"
#include "cases/rounding_points.h"
#include "cases/sum_tree.h"

namespace assay::reference {

/// What happens at a rounding point.
struct PointFormat {
  double unit = 0.0;               ///< unit roundoff; 0: nothing is rounded
  const Format* format = nullptr;  ///< null where unit is 0, and for F64
};

/// A contract as the scalars read it.
struct PointTable {
  std::array<PointFormat, kRoundingPointCount> points;
  std::map<std::string, SumTree, std::less<>> trees;  ///< of the ops
};

/// How Sampled rounds.
enum class Execution {
  kRandom,   ///< Monte Carlo arithmetic: every rounding goes a random part of a unit either way
  kNearest,  ///< as an implementation does: to nearest even, sums in an order and grouping that the seed chooses
};

/// The roundings of an implementation: how far any implementation may be off that computes in a format with unit
/// roundoff `compute` and rounds values to formats at the declared points.
struct RoundingModel {
  double compute = 0x1p-53;     ///< unit roundoff of the format that sums and functions are computed in
  double activation = 0x1p-53;  ///< unit roundoff of the activation dtype, for points that no contract speaks of
  double tiny = 0x1p-1022;      ///< absolute error of a result that underflows in the compute format
  double function_ulps =
      2.0;  ///< error of exp, log, tanh, erf, ... in units of 2*compute (CUDA C++ Guide: at most 2 ulp)
  const Format* compute_format = nullptr;          ///< for Execution::kNearest; null: F64
  SumTree tree = {};                               ///< of every dot
  std::shared_ptr<const PointTable> points = {};   ///< null: no contract, see Unspecified (cases/rounding_points.h)
  Execution execution = Execution::kRandom;
};

struct Context {
  int bits = 128;               ///< working precision of Ball; Real has at least as many
  int cap_bits = 2048;          ///< highest precision a decision may ask for before it is called a tie
  bool ties_are_final = false;  ///< with operands that are balls: no higher precision will come, report the tie
  RoundingModel rounding;
  bool execute = false;       ///< double, Real and Ball round at the contract's points and are exact between them
  std::uint64_t stream = 0;  ///< state of the random numbers of Sampled; parallel_for derives one per row
};

/// This thread's context.
Context& context();

/// The rounding of a point under this thread's context.
PointFormat format_at(Point point);

/// Replaces this thread's context for a scope, and the default precision of Real with it.
class ContextScope {
 public:
  explicit ContextScope(const Context& replacement);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  Context saved_;
  unsigned saved_digits_;
};

/// Only the ball precision, for a decision that needs more.
class BallBits {
 public:
  explicit BallBits(int bits) : saved_(context().bits) { context().bits = bits; }
  ~BallBits() { context().bits = saved_; }
  BallBits(const BallBits&) = delete;
  BallBits& operator=(const BallBits&) = delete;

 private:
  int saved_;
};

}  // namespace assay::reference
