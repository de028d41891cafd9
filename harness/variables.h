// Variables in the maps of names: "{layer}" and the like in a text.
#pragma once

#include <cstdint>
#include <string>

namespace assay::harness {

/// The text with every "{variable}" replaced by the value.
std::string replaced(std::string text, const std::string& variable, std::int64_t value);

}  // namespace assay::harness
