#include "cases/error.h"

#include <cstdio>
#include <cstdlib>

namespace assay {

void broken_invariant(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, expression);
  std::abort();
}

}  // namespace assay
