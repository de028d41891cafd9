#include "cases/dtype.h"

#include <array>
#include <cstddef>

#include "cases/error.h"

namespace assay {
namespace {

struct DTypeRow {
  DType dtype;
  int size;
  std::string_view name;
};

constexpr std::array<DTypeRow, 16> kRows{{
    {DType::kBool, 1, "BOOL"},
    {DType::kU8, 1, "U8"},
    {DType::kI8, 1, "I8"},
    {DType::kU16, 2, "U16"},
    {DType::kI16, 2, "I16"},
    {DType::kU32, 4, "U32"},
    {DType::kI32, 4, "I32"},
    {DType::kU64, 8, "U64"},
    {DType::kI64, 8, "I64"},
    {DType::kE4M3, 1, "F8_E4M3"},
    {DType::kE5M2, 1, "F8_E5M2"},
    {DType::kUE8M0, 1, "F8_E8M0"},
    {DType::kBF16, 2, "BF16"},
    {DType::kF16, 2, "F16"},
    {DType::kF32, 4, "F32"},
    {DType::kF64, 8, "F64"},
}};

constexpr bool rows_follow_the_enum() {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (static_cast<std::size_t>(kRows[i].dtype) != i) return false;
  return true;
}
static_assert(rows_follow_the_enum());

const DTypeRow& row_of(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  ASSAY_CHECK(index < kRows.size());
  return kRows[index];
}

}  // namespace

int size_of(DType dtype) { return row_of(dtype).size; }

std::string_view name_of(DType dtype) { return row_of(dtype).name; }

std::optional<DType> dtype_named(std::string_view name) {
  for (const DTypeRow& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

bool is_real(DType dtype) { return dtype >= DType::kE4M3 && dtype <= DType::kF64; }

}  // namespace assay
