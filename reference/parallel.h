// Work over rows on several threads. Every row is computed by exactly one thread with the same operations in the same
// order, so that no result depends on the number of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace assay::reference {

/// Number of threads used from now on (at least 1); the default is the number of cores.
void set_jobs(int jobs);
int jobs();

/// Calls body(i) once for every i in [0, count). Bodies must write to places of their own. Workers get this thread's
/// context. The exception of the smallest i is rethrown. Nested calls run on the calling thread.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body);

}  // namespace assay::reference
