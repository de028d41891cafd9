// What a checkpoint holds, counted per dtype and per part of the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cases/checkpoint.h"

namespace assay::harness {

struct Entry {
  std::string name;
  std::string group;
  DType dtype;
  Shape shape;
  std::int64_t parameters;  ///< elements; none for the scales of FP8 weights
};

struct Total {
  std::string name;
  std::int64_t tensors = 0, parameters = 0, bytes = 0;
};

struct Inventory {
  std::vector<Entry> entries;  ///< in name order
  std::vector<Total> dtypes;   ///< only those that occur
  std::vector<Total> groups;   ///< all groups, then "other" if something fits none
  Total all;
};

/// The part of the model that a tensor belongs to, by its name (shared/spec/model.md section 2): embedding (with the
/// head), norms, mHC, KDA, MLA + indexer, dense MLP, router, shared experts, routed experts, MTP (layers behind the
/// trunk), vision, other.
std::string group_of(const std::string& name, const ModelConfig& config);

Inventory inventory_of(const Checkpoint& checkpoint);

}  // namespace assay::harness
