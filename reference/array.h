// The arrays the reference computes on: row-major values of one scalar.
#pragma once

#include <cstdint>
#include <vector>

#include "cases/error.h"
#include "cases/tensor.h"
#include "reference/scalar.h"

namespace assay::reference {

template <class T>
struct Array {
  Shape shape{0};
  std::vector<T> data;

  Array() = default;
  explicit Array(Shape dims) : shape(std::move(dims)), data(static_cast<std::size_t>(element_count(shape))) {}
  Array(Shape dims, std::vector<T> values) : shape(std::move(dims)), data(std::move(values)) {
    ASSAY_CHECK(static_cast<std::int64_t>(data.size()) == element_count(shape));
  }

  std::int64_t size() const { return static_cast<std::int64_t>(data.size()); }
  std::int64_t dim(int axis) const {
    return shape[static_cast<std::size_t>(axis < 0 ? axis + static_cast<int>(shape.size()) : axis)];
  }
  T& operator[](std::int64_t i) { return data[static_cast<std::size_t>(i)]; }
  const T& operator[](std::int64_t i) const { return data[static_cast<std::size_t>(i)]; }
  /// Element of a two- or three-dimensional array.
  T& at(std::int64_t i, std::int64_t j) { return (*this)[i * dim(1) + j]; }
  const T& at(std::int64_t i, std::int64_t j) const { return (*this)[i * dim(1) + j]; }
  T& at(std::int64_t i, std::int64_t j, std::int64_t k) { return (*this)[(i * dim(1) + j) * dim(2) + k]; }
  const T& at(std::int64_t i, std::int64_t j, std::int64_t k) const { return (*this)[(i * dim(1) + j) * dim(2) + k]; }
  /// Pointer to row i of the array seen as [size / width, width].
  T* row(std::int64_t i, std::int64_t width) { return data.data() + i * width; }
  const T* row(std::int64_t i, std::int64_t width) const { return data.data() + i * width; }

  Array reshaped(Shape dims) const& { return Array(std::move(dims), data); }
  Array reshaped(Shape dims) && { return Array(std::move(dims), std::move(data)); }
};

using Index = Array<std::int64_t>;

/// The exact values of a tensor in scalar T.
template <class T>
Array<T> load(const Tensor& tensor) {
  Array<T> result(tensor.shape());
  for (std::int64_t i = 0; i < tensor.size(); ++i) result[i] = T(tensor.real(i));
  return result;
}

inline Index load_index(const Tensor& tensor) { return Index(tensor.shape(), tensor.integers()); }

}  // namespace assay::reference
