// Rounding contracts in writing.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cases/contract.h"
#include "cases/ops/op.h"
#include "harness/options.h"

namespace assay::harness {

/// The contract of the chosen profile, or of every profile if none is chosen, with GLM-5.3-Flash's flags and the
/// options' changes.
std::vector<Contract> contracts_of(const ContractOptions& options, DType activation);

/// One block per op: points, sums and attributes in lines, one column per contract.
std::string contract_table(const std::vector<Contract>& contracts, const std::vector<OpSpec>& ops);

nlohmann::ordered_json contracts_json(const std::vector<Contract>& contracts, const std::vector<OpSpec>& ops);

}  // namespace assay::harness
