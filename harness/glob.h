// Names chosen by a pattern: * is any run of characters (none too), ? is any one, everything else is itself.
#pragma once

#include <string_view>

namespace assay::harness {

/// True if the whole of `name` fits `pattern`.
bool glob_match(std::string_view pattern, std::string_view name);

}  // namespace assay::harness
