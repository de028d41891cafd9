// Operands of which only a part is wanted: a held tensor, or one that is too large to hold and is made on demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cases/tensor.h"

namespace assay::harness {

/// Per axis the wanted places, in the wanted order, each as often as it is named; nothing: the whole axis.
using AxisPicks = std::vector<std::optional<std::vector<std::int64_t>>>;

/// Element number `counter` of the stream `seed` of random 64-bit numbers (SplitMix64), the same on every platform.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter);

class OperandSource {
 public:
  virtual ~OperandSource() = default;
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }

  /// The elements at picks[0] x picks[1] x ... . Throws InputError for a place outside its axis or a wrong number of
  /// axes.
  Tensor gather(const AxisPicks& picks) const { return gather(shape_, picks); }
  /// The same of the operand seen under another shape with as many elements.
  Tensor gather(const Shape& view, const AxisPicks& picks) const;
  Tensor whole() const { return gather(AxisPicks(shape_.size())); }

 protected:
  OperandSource(DType dtype, Shape shape);

 private:
  /// Writes elements [first, first + count) of the flattened operand.
  virtual void read(std::int64_t first, std::int64_t count, std::byte* bytes) const = 0;

  DType dtype_;
  Shape shape_;
};

class HeldSource : public OperandSource {
 public:
  explicit HeldSource(Tensor tensor);

 private:
  void read(std::int64_t first, std::int64_t count, std::byte* bytes) const override;
  Tensor tensor_;
};

enum class Distribution {
  kNormal,   ///< the sum of twelve uniform numbers of 16 bits, shifted: mean 0, variance 1, within [-6, 6)
  kUniform,  ///< in [-1, 1), with 53 bits
};

/// Element i is offset + scale * a number that depends on seed and i only, rounded once to the dtype (a number format).
class RandomSource : public OperandSource {
 public:
  RandomSource(DType dtype, Shape shape, std::uint64_t seed, Distribution distribution = Distribution::kNormal,
               double scale = 1.0, double offset = 0.0);

 private:
  void read(std::int64_t first, std::int64_t count, std::byte* bytes) const override;
  std::uint64_t seed_;
  Distribution distribution_;
  double scale_, offset_;
};

using Sources = std::map<std::string, std::shared_ptr<const OperandSource>>;

/// The tensors as sources.
Sources held_sources(const std::map<std::string, Tensor>& tensors);

}  // namespace assay::harness
