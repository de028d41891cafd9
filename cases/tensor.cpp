#include "cases/tensor.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "cases/error.h"
#include "cases/formats.h"

namespace assay {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are little endian and are read in place");

/// Loads work at any alignment: data in a file need not be aligned.
template <typename T>
T load(std::span<const std::byte> bytes, std::int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

void store(std::vector<std::byte>& bytes, std::size_t i, const void* value, std::size_t size) {
  std::memcpy(bytes.data() + i * size, value, size);
}

std::size_t byte_count(DType dtype, const Shape& shape) {
  std::int64_t count = 0;
  if (__builtin_mul_overflow(element_count(shape), std::int64_t{size_of(dtype)}, &count))
    throw InputError("shape " + to_string(shape), "bytes overflow", "at most 2^63 - 1 bytes");
  return static_cast<std::size_t>(count);
}

Tensor owned(DType dtype, Shape shape, std::vector<std::byte> bytes) {
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::span<const std::byte> span(*owner);
  return Tensor::view(dtype, std::move(shape), span, std::move(owner));
}

struct Range {
  std::int64_t min;
  std::int64_t max;
};

template <typename T>
constexpr Range range_of() {
  return {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

/// Values of an integer dtype that int64 can express.
Range integer_range(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return {0, 1};
    case DType::kU8:
      return range_of<std::uint8_t>();
    case DType::kI8:
      return range_of<std::int8_t>();
    case DType::kU16:
      return range_of<std::uint16_t>();
    case DType::kI16:
      return range_of<std::int16_t>();
    case DType::kU32:
      return range_of<std::uint32_t>();
    case DType::kI32:
      return range_of<std::int32_t>();
    case DType::kU64:
      return {0, std::numeric_limits<std::int64_t>::max()};
    case DType::kI64:
      return range_of<std::int64_t>();
    default:
      break;
  }
  ASSAY_CHECK(!is_real(dtype));
  return {0, 0};
}

void check_count(DType dtype, const Shape& shape, std::size_t values) {
  if (static_cast<std::uint64_t>(element_count(shape)) != values)
    throw InputError(fmt::format("{} tensor {}", name_of(dtype), to_string(shape)), fmt::format("{} values", values),
                     fmt::format("{} allowed", element_count(shape)));
}

void store_integer(std::vector<std::byte>& bytes, std::size_t i, DType dtype, std::int64_t value) {
  const Range range = integer_range(dtype);
  if (value < range.min || value > range.max)
    throw InputError(fmt::format("{} element {}", name_of(dtype), i), fmt::format("value {}", value),
                     fmt::format("{} to {} allowed", range.min, range.max));
  // The low bytes of two's complement are the narrower integer.
  store(bytes, i, &value, static_cast<std::size_t>(size_of(dtype)));
}

/// An exact integer as int64; U64 reaches further than int64 and is handled by the caller.
std::int64_t exact_integer(DType dtype, std::size_t i, double value) {
  constexpr double kTwo63 = 0x1p63;
  if (!(value >= -kTwo63 && value < kTwo63) || std::trunc(value) != value)
    throw InputError(fmt::format("{} element {}", name_of(dtype), i), fmt::format("value {}", value),
                     "integers of the dtype's range allowed");
  return static_cast<std::int64_t>(value);
}

}  // namespace

std::int64_t element_count(const Shape& shape) {
  bool empty = false;
  std::int64_t count = 1;
  bool overflow = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0)
      throw InputError("shape " + to_string(shape), fmt::format("negative dimension {}", dimension), "0 or more");
    // An empty tensor must still have strides that fit.
    if (dimension == 0)
      empty = true;
    else
      overflow = overflow || __builtin_mul_overflow(count, dimension, &count);
  }
  if (overflow) throw InputError("shape " + to_string(shape), "number of elements overflows", "at most 2^63 - 1");
  return empty ? 0 : count;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Tensor Tensor::zeros(DType dtype, Shape shape) {
  std::vector<std::byte> bytes(byte_count(dtype, shape));
  return owned(dtype, std::move(shape), std::move(bytes));
}

Tensor Tensor::view(DType dtype, Shape shape, std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  if (bytes.size() != byte_count(dtype, shape))
    throw InputError(fmt::format("{} tensor {}", name_of(dtype), to_string(shape)),
                     fmt::format("{} bytes", bytes.size()), fmt::format("{} allowed", byte_count(dtype, shape)));
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.size_ = element_count(shape);
  tensor.shape_ = std::move(shape);
  tensor.bytes_ = bytes;
  tensor.owner_ = std::move(owner);
  return tensor;
}

Tensor Tensor::from_reals(DType dtype, Shape shape, std::span<const double> values) {
  check_count(dtype, shape, values.size());
  std::vector<std::byte> bytes(byte_count(dtype, shape));
  const Format* format = is_real(dtype) ? format_of(dtype) : nullptr;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (format != nullptr) {
      const std::uint32_t code = encode(*format, values[i], Overflow::kSpecial);
      store(bytes, i, &code, static_cast<std::size_t>(size_of(dtype)));
    } else if (dtype == DType::kF64) {
      store(bytes, i, &values[i], sizeof(double));
    } else if (dtype == DType::kU64 && values[i] >= 0x1p63 && values[i] < 0x1p64) {
      const auto value = static_cast<std::uint64_t>(values[i]);
      store(bytes, i, &value, sizeof(value));
    } else {
      store_integer(bytes, i, dtype, exact_integer(dtype, i, values[i]));
    }
  }
  return owned(dtype, std::move(shape), std::move(bytes));
}

Tensor Tensor::from_integers(DType dtype, Shape shape, std::span<const std::int64_t> values) {
  ASSAY_CHECK(!is_real(dtype));
  check_count(dtype, shape, values.size());
  std::vector<std::byte> bytes(byte_count(dtype, shape));
  for (std::size_t i = 0; i < values.size(); ++i) store_integer(bytes, i, dtype, values[i]);
  return owned(dtype, std::move(shape), std::move(bytes));
}

double Tensor::real(std::int64_t i) const {
  ASSAY_CHECK(i >= 0 && i < size_);
  if (dtype_ == DType::kF64) return load<double>(bytes_, i);
  if (is_real(dtype_)) return decode(*format_of(dtype_), code(i));
  if (dtype_ == DType::kU64) return static_cast<double>(load<std::uint64_t>(bytes_, i));
  return static_cast<double>(integer(i));
}

std::int64_t Tensor::integer(std::int64_t i) const {
  ASSAY_CHECK(i >= 0 && i < size_);
  switch (dtype_) {
    case DType::kBool:
      return load<std::uint8_t>(bytes_, i) != 0 ? 1 : 0;
    case DType::kU8:
      return load<std::uint8_t>(bytes_, i);
    case DType::kI8:
      return load<std::int8_t>(bytes_, i);
    case DType::kU16:
      return load<std::uint16_t>(bytes_, i);
    case DType::kI16:
      return load<std::int16_t>(bytes_, i);
    case DType::kU32:
      return load<std::uint32_t>(bytes_, i);
    case DType::kI32:
      return load<std::int32_t>(bytes_, i);
    case DType::kI64:
      return load<std::int64_t>(bytes_, i);
    case DType::kU64: {
      const auto value = load<std::uint64_t>(bytes_, i);
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        throw InputError(fmt::format("U64 element {}", i), fmt::format("value {}", value), "at most 2^63 - 1 allowed");
      return static_cast<std::int64_t>(value);
    }
    default:
      break;
  }
  ASSAY_CHECK(!is_real(dtype_));
  return 0;
}

std::uint32_t Tensor::code(std::int64_t i) const {
  ASSAY_CHECK(i >= 0 && i < size_);
  switch (size_of(dtype_)) {
    case 1:
      return load<std::uint8_t>(bytes_, i);
    case 2:
      return load<std::uint16_t>(bytes_, i);
    case 4:
      return load<std::uint32_t>(bytes_, i);
    default:
      break;
  }
  ASSAY_CHECK(size_of(dtype_) <= 4);
  return 0;
}

std::vector<double> Tensor::reals() const {
  std::vector<double> values(static_cast<std::size_t>(size_));
  for (std::int64_t i = 0; i < size_; ++i) values[static_cast<std::size_t>(i)] = real(i);
  return values;
}

std::vector<std::int64_t> Tensor::integers() const {
  std::vector<std::int64_t> values(static_cast<std::size_t>(size_));
  for (std::int64_t i = 0; i < size_; ++i) values[static_cast<std::size_t>(i)] = integer(i);
  return values;
}

Tensor Tensor::reshaped(Shape shape) const {
  if (element_count(shape) != size_)
    throw InputError("reshape of " + to_string(shape_), "new shape " + to_string(shape),
                     fmt::format("{} elements allowed", size_));
  return view(dtype_, std::move(shape), bytes_, owner_);
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t end) const {
  if (shape_.empty() || begin < 0 || begin > end || end > shape_[0])
    throw InputError("rows of " + to_string(shape_), fmt::format("[{}, {})", begin, end),
                     "a range within the first dimension allowed");
  Shape shape = shape_;
  shape[0] = end - begin;
  const std::size_t row_bytes = shape_[0] == 0 ? 0 : bytes_.size() / static_cast<std::size_t>(shape_[0]);
  const auto bytes =
      bytes_.subspan(static_cast<std::size_t>(begin) * row_bytes, static_cast<std::size_t>(end - begin) * row_bytes);
  return view(dtype_, std::move(shape), bytes, owner_);
}

Tensor Tensor::permuted(const std::vector<int>& order) const {
  const std::size_t rank = shape_.size();
  std::vector<bool> seen(rank, false);
  bool valid = order.size() == rank;
  for (std::size_t k = 0; valid && k < rank; ++k) {
    const auto from = static_cast<std::size_t>(order[k]);
    valid = order[k] >= 0 && from < rank && !seen[from];
    if (valid) seen[from] = true;
  }
  if (!valid)
    throw InputError("permutation of " + to_string(shape_), fmt::format("order [{}]", fmt::join(order, ", ")),
                     fmt::format("each of the {} dimensions once", rank));

  // Strides, in elements of the source, of the dimensions of the result.
  std::vector<std::size_t> source_strides(rank, 1);
  for (std::size_t k = rank; k-- > 1;) source_strides[k - 1] = source_strides[k] * static_cast<std::size_t>(shape_[k]);
  Shape shape(rank);
  std::vector<std::size_t> strides(rank);
  for (std::size_t k = 0; k < rank; ++k) {
    shape[k] = shape_[static_cast<std::size_t>(order[k])];
    strides[k] = source_strides[static_cast<std::size_t>(order[k])];
  }

  std::vector<std::byte> bytes(bytes_.size());
  const auto width = static_cast<std::size_t>(size_of(dtype_));
  std::vector<std::int64_t> index(rank, 0);
  std::size_t source = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(size_); ++i) {
    store(bytes, i, bytes_.data() + source * width, width);
    for (std::size_t k = rank; k-- > 0;) {
      source += strides[k];
      if (++index[k] < shape[k]) break;
      source -= strides[k] * static_cast<std::size_t>(shape[k]);
      index[k] = 0;
    }
  }
  return owned(dtype_, std::move(shape), std::move(bytes));
}

}  // namespace assay
