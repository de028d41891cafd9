// Operands of an op written by hand in JSON.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "cases/tensor.h"

namespace assay::harness {

/// A tensor from nested arrays, all of one length per depth (a bare value is a scalar). Real dtypes take numbers (read
/// as the nearest double; integers must be doubles), "0x1.8p-3" (exact), "nan", "inf", "-inf"; each must be a value of
/// the dtype. Integer dtypes take integers. Throws InputError naming `where` and the position: ragged arrays, wrong
/// types, values that the dtype does not have.
Tensor tensor_from_json(const std::string& where, const nlohmann::json& values, DType dtype);

/// The double that text like "0x1.8p-3", "-0x3", "nan", "inf" or "-inf" stands for; nullopt for other text and for hex
/// digits that a double cannot hold.
std::optional<double> double_from_text(const std::string& text);

/// A dtype by its safetensors name or its format's ("BF16", "bf16", "F8_E4M3", "e4m3", "fp32"). Throws InputError.
DType dtype_from_text(const std::string& where, const std::string& text);

}  // namespace assay::harness
