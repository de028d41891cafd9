// Element types of tensors, under the names of the safetensors format.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace assay {

enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,  // integers
  kE4M3,
  kE5M2,
  kUE8M0,
  kBF16,
  kF16,
  kF32,
  kF64,  // number formats
};

/// Bytes of one element.
int size_of(DType dtype);

/// The safetensors name: BOOL, U8, I8, U16, I16, U32, I32, U64, I64, F8_E4M3, F8_E5M2, F8_E8M0, BF16, F16, F32, F64.
std::string_view name_of(DType dtype);

/// The type with this safetensors name, if there is one.
std::optional<DType> dtype_named(std::string_view name);

/// True for kE4M3 ... kF64.
bool is_real(DType dtype);

}  // namespace assay
