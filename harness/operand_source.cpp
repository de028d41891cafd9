#include "harness/operand_source.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "cases/error.h"

namespace assay::harness {
namespace {

void check_picks(const Shape& view, const AxisPicks& picks) {
  if (picks.size() != view.size())
    throw InputError("gather from " + to_string(view), fmt::format("places for {} axes", picks.size()),
                     fmt::format("one list per axis, {}", view.size()));
  for (std::size_t axis = 0; axis < view.size(); ++axis) {
    if (!picks[axis]) continue;
    for (const std::int64_t place : *picks[axis])
      if (place < 0 || place >= view[axis])
        throw InputError("gather from " + to_string(view), fmt::format("place {} of axis {}", place, axis),
                         fmt::format("0 to {}", view[axis] - 1));
  }
}

}  // namespace

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed + (counter + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

OperandSource::OperandSource(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {
  element_count(shape_);  // refuses shapes that overflow
}

Tensor OperandSource::gather(const Shape& view, const AxisPicks& picks) const {
  if (element_count(view) != element_count(shape_))
    throw InputError("gather from " + to_string(shape_), "view " + to_string(view), "as many elements are needed");
  check_picks(view, picks);
  Shape shape = view;
  for (std::size_t axis = 0; axis < view.size(); ++axis)
    if (picks[axis]) shape[axis] = static_cast<std::int64_t>(picks[axis]->size());
  // Trailing whole axes are read in one go.
  std::size_t axes = view.size();
  std::int64_t run = 1;
  while (axes > 0 && !picks[axes - 1]) run *= view[--axes];
  const auto width = static_cast<std::size_t>(run) * static_cast<std::size_t>(size_of(dtype_));
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(element_count(shape)) *
                                                        static_cast<std::size_t>(size_of(dtype_)));
  if (!bytes->empty()) {
    const auto runs = bytes->size() / width;
    std::vector<std::int64_t> at(axes, 0);
    for (std::size_t i = 0; i < runs; ++i) {
      std::int64_t first = 0;
      for (std::size_t axis = 0; axis < axes; ++axis) {
        const std::int64_t place = picks[axis] ? (*picks[axis])[static_cast<std::size_t>(at[axis])] : at[axis];
        first = first * view[axis] + place;
      }
      read(first * run, run, bytes->data() + i * width);
      for (std::size_t axis = axes; axis-- > 0;) {
        if (++at[axis] < shape[axis]) break;
        at[axis] = 0;
      }
    }
  }
  const std::span<const std::byte> span(*bytes);
  return Tensor::view(dtype_, std::move(shape), span, std::move(bytes));
}

HeldSource::HeldSource(Tensor tensor) : OperandSource(tensor.dtype(), tensor.shape()), tensor_(std::move(tensor)) {}

void HeldSource::read(std::int64_t first, std::int64_t count, std::byte* bytes) const {
  const auto size = static_cast<std::size_t>(size_of(dtype()));
  std::memcpy(bytes, tensor_.bytes().data() + static_cast<std::size_t>(first) * size,
              static_cast<std::size_t>(count) * size);
}

RandomSource::RandomSource(DType dtype, Shape shape, std::uint64_t seed, Distribution distribution, double scale,
                           double offset)
    : OperandSource(dtype, std::move(shape)),
      seed_(random_bits(seed, 0)),  // neighbouring seeds must not give shifted streams
      distribution_(distribution),
      scale_(scale),
      offset_(offset) {
  if (!is_real(dtype))
    throw InputError("random operand", fmt::format("dtype {}", name_of(dtype)), "a number format is needed");
}

void RandomSource::read(std::int64_t first, std::int64_t count, std::byte* bytes) const {
  constexpr std::uint64_t kDraws = 3;  // of 64 bits: four numbers of 16 bits each
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t element = static_cast<std::uint64_t>(first) + i;
    double value = 0.0;
    if (distribution_ == Distribution::kUniform) {
      value = static_cast<double>(random_bits(seed_, element) >> 11) * 0x1p-52 - 1.0;
    } else {
      std::uint64_t sum = 0;
      for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
        const std::uint64_t bits = random_bits(seed_, element * kDraws + draw);
        for (int part = 0; part < 64; part += 16) sum += (bits >> part) & 0xFFFFU;
      }
      value = static_cast<double>(sum) * 0x1p-16 - 6.0;
    }
    values[i] = offset_ + scale_ * value;
  }
  const Tensor rounded = Tensor::from_reals(dtype(), {count}, values);
  std::memcpy(bytes, rounded.bytes().data(), rounded.bytes().size());
}

Sources held_sources(const std::map<std::string, Tensor>& tensors) {
  Sources sources;
  for (const auto& [name, tensor] : tensors) sources[name] = std::make_shared<HeldSource>(tensor);
  return sources;
}

}  // namespace assay::harness
