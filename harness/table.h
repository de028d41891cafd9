// A report as a text table, and the messages about a check that table and JUnit share.
#pragma once

#include <string>

#include "harness/result.h"

namespace assay::harness {

/// One line: why the check did not pass, with the worst element in decimal and hexadecimal; the reason of a PASS.
std::string explain(const Check& check);

/// One row per check: stage, elements, error, limit, share of the limit used, relative error, verdict; for sets the
/// rows that are equal, tied, explained by margin, unexplained. The reason follows the verdict.
std::string to_table(const Report& report, bool colour);

/// True if the descriptor is a terminal and NO_COLOR is not set (no-color.org: present and not empty).
bool wants_colour(int descriptor);

}  // namespace assay::harness
