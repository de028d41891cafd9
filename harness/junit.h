// A report as JUnit XML, for continuous integration.
#pragma once

#include <string>

#include "harness/result.h"

namespace assay::harness {

/// Text for XML 1.0 content and attributes: & < > " ' escaped, line ends as references, characters that XML cannot hold
/// as \xNN, bytes that are not UTF-8 as U+FFFD.
std::string xml_escaped(const std::string& text);

/// One testcase per check: FAIL and MISTRUSTED are failures, ERROR an error, SKIPPED skipped.
std::string to_junit(const Report& report);

}  // namespace assay::harness
