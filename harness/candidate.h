// What computes an op call, and how it is run.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cases/contract.h"
#include "cases/ops/op.h"
#include "harness/result.h"

namespace assay::harness {

using Outputs = std::map<std::string, Tensor>;

/// A contract run, an engine, a planted fault. Output buffers are filled with the byte `poison` before they are written.
using Candidate = std::function<Outputs(const OpCall& call, unsigned char poison)>;

/// The reference executing the contract as one implementation might: every declared rounding to nearest, every other
/// operation rounded to the format of the sums, sums in an order that `seed` chooses among those that the contract
/// allows. Real outputs come in the narrowest of the activation dtype and F32 (F64 in a double contract) that holds
/// them exactly.
Candidate contract_run(const Contract& contract, std::uint64_t seed);

/// The contract executed exactly: no rounding but the declared ones, each decided on balls. Real outputs that no point
/// rounds are rounded once to F32 (F64).
Outputs execute_contract(const OpCall& call, const Contract& contract);

struct HygienicRun {
  Outputs outputs;            ///< of the first run
  std::vector<Check> checks;  ///< "inputs unchanged", "repeatable", "shapes"
};

/// Runs a candidate `repeats` times (at least 2), each time with another poison: inputs must not change by a bit, outputs
/// must have their declared shapes and be the same bits each time (an element that is not written, or that depends on
/// what was there, is not).
HygienicRun run_hygienically(const Candidate& candidate, const OpCall& call, int repeats);

}  // namespace assay::harness
