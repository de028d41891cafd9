// Traces: recorded tensors of any implementation, brought to the reference's stages by a map of names.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cases/checkpoint.h"
#include "reference/model/model.h"

namespace assay::harness {

struct Recorded {
  std::string name;  ///< in the trace file, with "[b]" for one row of the batch
  Tensor tensor;     ///< in the layout of the stage
};

struct Trace {
  reference::ModelInputs inputs;
  reference::Conventions conventions;
  std::map<std::string, std::vector<Recorded>> stages;  ///< by stage; several records of the same stage are all judged
  std::vector<std::string> unmapped;                    ///< judged names of the file that no stage claims
  std::vector<std::string> absent;                      ///< mapped names that the file lacks
};

/// Reads a trace through a map of names (cases/names/*.json). In a map {layer} runs over the checkpoint layers,
/// {attention} = 2 layer, {ffn} = 2 layer + 1, {row} over the rows of the batch (the record is sliced along its first
/// dimension), and "permute" gives the order in which the record's dimensions become the stage's. Throws InputError
/// naming the map, the field or the tensor.
Trace read_trace(const std::filesystem::path& trace_file, const std::filesystem::path& map_file,
                 const ModelConfig& config);

}  // namespace assay::harness
