// Reading one JSON object of a config file field by field, with messages that name the field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace assay {

/// Parses a file of one JSON object. Throws InputError naming the file: unreadable, not JSON, not an object, a key that
/// occurs twice in one object.
nlohmann::json read_json_object(const std::filesystem::path& file);

/// Sizes above this are rejected, so that products of two of them fit in 64 bits.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;

/// One object of the file. Every field asked for counts as known.
class ConfigFields {
 public:
  /// `prefix` is the dotted path of the object, empty at the top.
  ConfigFields(std::string file, std::string prefix, const nlohmann::json& object);

  bool has(const std::string& name);
  /// Present and not null.
  bool has_value(const std::string& name);
  /// The value of a field that must be there; `allowed` says what is needed.
  const nlohmann::json& at(const std::string& name, const std::string& allowed);

  std::int64_t integer(const std::string& name, std::int64_t least, std::int64_t most = kMaxSize);
  double real(const std::string& name);          ///< any finite number
  double positive(const std::string& name);      ///< finite and > 0
  double not_negative(const std::string& name);  ///< finite and >= 0
  bool boolean(const std::string& name);
  std::string text(const std::string& name);
  /// A list of words, each one of `allowed`, `length` of them (`length_source` names the field that says so).
  std::vector<std::string> words(const std::string& name, std::size_t length, const std::string& length_source,
                                 const std::vector<std::string>& allowed);
  std::vector<std::int64_t> integers(const std::string& name);
  ConfigFields object(const std::string& name);

  /// Checks for fields of which the model knows only one value.
  void need_boolean(const std::string& name, bool value);
  void need_text(const std::string& name, std::string_view value);
  void need_integer(const std::string& name, std::int64_t value);

  /// Type checks of fields that are known but not used; absent and null are fine.
  void unused_boolean(const std::string& name);
  void unused_text(const std::string& name);
  void unused_real(const std::string& name);
  void unused_integer(const std::string& name);
  void unused_texts(const std::string& name);
  void unused_token_ids(const std::string& name);  ///< one or a list

  [[noreturn]] void fail(const std::string& name, const std::string& found, const std::string& allowed) const;
  std::string dotted(const std::string& name) const;
  /// Fields that were never asked for, as dotted paths in name order.
  std::vector<std::string> unknown() const;

 private:
  const nlohmann::json& known(const std::string& name);

  std::string file_;
  std::string prefix_;
  const nlohmann::json& object_;
  std::set<std::string> known_;
};

}  // namespace assay
