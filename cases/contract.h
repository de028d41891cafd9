// Rounding contracts: for every op, where an implementation rounds and to which format, in which format it sums and in
// which tree. The data is cases/contracts.json; a profile is one column of it, flags (cases/flags.h) switch entries.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cases/dtype.h"
#include "cases/flags.h"
#include "cases/rounding_points.h"
#include "cases/sum_tree.h"

namespace assay {

struct SumRule {
  std::string name;    ///< "over K", "over tokens"
  std::string format;  ///< fp32, activation, tf32, ...
  SumTree tree;
};

struct PointRule {
  std::size_t point;   ///< index into kRoundingPoints
  std::string format;  ///< "none" (kept as computed), "activation", or a format's name (cases/formats.h)
};

/// The contract of one op under one profile and one set of flags.
struct OpContract {
  std::string op;
  nlohmann::json attributes = nlohmann::json::object();  ///< attributes of the op that the profile or a flag fixes
  std::vector<PointRule> points;                         ///< every point of the op, in the order of kRoundingPoints
  std::vector<SumRule> sums;                             ///< the first is the one that all dots of the op follow
  std::string source;                                    ///< sections of shared/spec
};

/// Throws InputError unless the content of contracts.json has every op and every rounding point, and no others.
void check_contracts(const nlohmann::json& file);

/// The names of the profiles: "megatron", "hf", "serving".
const std::vector<std::string>& contract_profiles();

class Contract {
 public:
  /// Throws InputError for an unknown profile (with the known ones) and for flags that are refused.
  /// `activation` is what "activation" stands for (BF16 in production, F32 in a float32 run, F64 in a double run).
  static Contract resolve(std::string_view profile, const Flags& flags, DType activation);

  const std::string& profile() const { return profile_; }
  const Flags& flags() const { return flags_; }
  DType activation() const { return activation_; }
  /// One entry for every op of the catalogue, in its order.
  const std::vector<OpContract>& ops() const { return ops_; }
  const OpContract& of(std::string_view op) const;

 private:
  std::string profile_;
  Flags flags_;
  DType activation_ = DType::kBF16;
  std::vector<OpContract> ops_;
};

}  // namespace assay
