// A report as JSON. Schema: harness/result.schema.json (closed: every object has exactly the keys it names).
#pragma once

#include <nlohmann/json.hpp>

#include "harness/result.h"

namespace assay::harness {

/// A number, or one of the words "nan", "inf", "-inf" that JSON has no numbers for.
nlohmann::ordered_json json_number(double value);

nlohmann::ordered_json to_json(const Report& report);

/// Text of a result file, with a newline at its end. Bytes that are not UTF-8 (odd file names) become U+FFFD.
std::string to_text(const nlohmann::ordered_json& document);

}  // namespace assay::harness
