// A tensor of a file or an op call: dtype, shape and bytes (little endian, row-major). Tensors are cheap to copy: they
// share their bytes. The reference computes on its own arrays (`reference/array.h`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cases/dtype.h"

namespace assay {

using Shape = std::vector<std::int64_t>;

/// Product of the dimensions (1 for a scalar). Throws InputError for a negative dimension or an overflow of int64.
std::int64_t element_count(const Shape& shape);

/// "[2, 45, 64]".
std::string to_string(const Shape& shape);

class Tensor {
 public:
  Tensor() = default;

  /// Owned zero bytes.
  static Tensor zeros(DType dtype, Shape shape);
  /// A view of bytes kept alive by `owner` (a mapped file). The byte count must match.
  static Tensor view(DType dtype, Shape shape, std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  /// Owned; each value rounded once (nearest even, overflow to infinity or NaN); integers must be exact.
  static Tensor from_reals(DType dtype, Shape shape, std::span<const double> values);
  /// Owned integer tensor; a value out of range throws InputError.
  static Tensor from_integers(DType dtype, Shape shape, std::span<const std::int64_t> values);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  /// Element `i` of the flattened tensor, widened exactly. Integers beyond 2^53 and bool become the nearest double.
  double real(std::int64_t i) const;
  /// Element `i` of an integer (or bool) tensor.
  std::int64_t integer(std::int64_t i) const;
  /// Bit pattern of element `i` (dtypes of at most 4 bytes).
  std::uint32_t code(std::int64_t i) const;

  std::vector<double> reals() const;
  std::vector<std::int64_t> integers() const;

  /// Same bytes under another shape with as many elements.
  Tensor reshaped(Shape shape) const;
  /// Rows [begin, end) of the first dimension, sharing the bytes.
  Tensor rows(std::int64_t begin, std::int64_t end) const;
  /// A copy with the dimensions in the given order: permuted({1, 0}) is the transpose.
  Tensor permuted(const std::vector<int>& order) const;

 private:
  DType dtype_ = DType::kF64;
  Shape shape_{0};
  std::int64_t size_ = 0;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

}  // namespace assay
