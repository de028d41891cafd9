// What a sampled call needs besides plain slices (SliceCompanion).
#pragma once

#include <map>
#include <string>

#include "cases/ops/slices.h"
#include "harness/operand_source.h"

namespace assay::harness {

/// Operands and attributes of the sub-call that replace those of the whole call.
struct Companions {
  std::map<std::string, Tensor> operands;
  std::map<std::string, nlohmann::json> attributes;
};

/// Completes a selection and makes what must be counted anew. Throws InputError where the index operands are wrong.
Companions add_companions(const OpCall& whole, const Sources& sources, SliceCompanion companion, Selection& selection);

/// True for an operand that add_companions makes anew, whatever it was sliced along.
bool counts_anew(SliceCompanion companion, const std::string& operand);

/// The same as add_companions for an estimate of work, without reading any operand:
/// groups have their mean size.
void add_typical_companions(const OpCall& whole, SliceCompanion companion, Selection& selection);

}  // namespace assay::harness
