// Short words for writing an OpSpec: used by the family files of this folder only.
#pragma once

#include <string>
#include <utility>

#include "cases/ops/op.h"

namespace assay::spec {

inline OperandSpec real(std::string name, std::string dims, std::string meaning) {
  return {std::move(name), std::move(dims), OperandKind::kReal, false, std::move(meaning)};
}

inline OperandSpec optional_real(std::string name, std::string dims, std::string meaning) {
  return {std::move(name), std::move(dims), OperandKind::kReal, true, std::move(meaning)};
}

inline OperandSpec index(std::string name, std::string dims, std::string meaning) {
  return {std::move(name), std::move(dims), OperandKind::kIndex, false, std::move(meaning)};
}

inline OperandSpec optional_index(std::string name, std::string dims, std::string meaning) {
  return {std::move(name), std::move(dims), OperandKind::kIndex, true, std::move(meaning)};
}

/// An attribute that every call must give.
inline AttributeSpec required(std::string name, AttributeKind kind, std::string meaning) {
  return {std::move(name), kind, std::nullopt, std::move(meaning)};
}

/// An attribute with a value for calls that do not give one.
inline AttributeSpec with_default(std::string name, AttributeKind kind, nlohmann::json fallback, std::string meaning) {
  return {std::move(name), kind, std::optional<nlohmann::json>(std::move(fallback)), std::move(meaning)};
}

/// An attribute that may be absent (null in a completed call).
inline AttributeSpec nullable(std::string name, AttributeKind kind, std::string meaning) {
  return {std::move(name), kind, std::optional<nlohmann::json>(nlohmann::json(nullptr)), std::move(meaning)};
}

inline constexpr AttributeKind kInteger = AttributeKind::kInteger;
inline constexpr AttributeKind kReal = AttributeKind::kReal;
inline constexpr AttributeKind kBool = AttributeKind::kBool;
inline constexpr AttributeKind kText = AttributeKind::kText;
inline constexpr AttributeKind kIntegers = AttributeKind::kIntegers;

}  // namespace assay::spec
