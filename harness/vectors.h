// Vector files: recorded inputs and outputs of single functions. The map from a group of cases to op calls is data
// (cases/vectors.json): nothing about a particular group is code.
//
// A file holds tensors "<group>.<case>.{in,in64,out,grad}.<name>" and the metadata "cases", JSON {"<group>.<case>":
// {flag: value}}.
#pragma once

#include <filesystem>

#include "harness/verify.h"

namespace assay::harness {

/// Judges every case of the file that the filter admits ("<group>.<case>"), output by output, each against the truth
/// given the recorded inputs. Values are held to the error that the recorded dtypes imply (scalar Bound: sums in F32,
/// declared roundings to the recorded activation dtype, one store); indices, codes and selections to equality,
/// selections up to exact ties. Cases or outputs that the map does not know are SKIPPED with their names. Throws
/// InputError for a broken file or map.
std::vector<Check> verify_vectors(const std::filesystem::path& file, const std::filesystem::path& map,
                                  const VerifySettings& settings);

/// For a table: the checks that passed as one row per group (worst share, summed elements), all others as they are.
std::vector<Check> by_group(const std::vector<Check>& checks);

}  // namespace assay::harness
