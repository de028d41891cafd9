// Megatron's switches that change numerics, under Megatron's own names, with its defaults and its refusals
// (shared/spec/megatron.md 1.1, 2.1, 3.1, 5). `glm()` are the values of GLM-5.3-Flash.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace assay {

struct FlagSpec {
  std::string name;
  nlohmann::json fallback;  ///< Megatron's default; its type is the flag's type, null: absent is allowed
  nlohmann::json glm;       ///< value of the GLM-5.3-Flash provider
  std::string meaning;
  std::string source;
};

const std::vector<FlagSpec>& flag_specs();

class Flags {
 public:
  /// Megatron's defaults.
  Flags();
  static Flags glm();

  /// "name=value" (true, false, a number, null) or "name" for true. Throws InputError for an unknown name (with the
  /// nearest ones) or a value of the wrong type.
  void set(std::string_view assignment);
  void set(std::string_view name, const nlohmann::json& value);

  bool on(std::string_view name) const;
  const nlohmann::json& value(std::string_view name) const;
  const nlohmann::json& all() const { return values_; }

  /// Throws InputError, naming the flags and the rule, for a combination that Megatron refuses.
  void check() const;

 private:
  nlohmann::json values_;
};

}  // namespace assay
