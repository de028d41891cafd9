#include "cases/config_fields.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "cases/error.h"

namespace assay {
namespace {

using nlohmann::json;

/// `words` with `separator` between them. (fmt::join of GCC 12 at -O3 warns falsely: -Wstringop-overflow in fmt 9.)
std::string joined(const std::vector<std::string>& words, const std::string& separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::string shown(const json& value) {
  constexpr std::size_t kLongest = 60;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

bool is_int64(const json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() ||
          value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
}

bool is_finite(const json& value) { return value.is_number() && std::isfinite(value.get<double>()); }

/// Follows the parser and refuses a key that its object already has.
class DuplicateKeys {
 public:
  explicit DuplicateKeys(std::string file) : file_(std::move(file)) {}

  bool operator()(int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end) open_.pop_back();
    if (event == json::parse_event_t::key) {
      Level& level = open_.back();
      level.current = parsed.get<std::string>();
      if (!level.keys.insert(level.current).second) {
        throw InputError(file_ + ": field " + path(), "present twice", "each field may occur once");
      }
    }
    return true;
  }

 private:
  struct Level {
    std::set<std::string> keys;
    std::string current;
  };

  std::string path() const {
    std::vector<std::string> names;
    for (const Level& level : open_) names.push_back(level.current);
    return joined(names, ".");
  }

  std::string file_;
  std::vector<Level> open_;
};

}  // namespace

json read_json_object(const std::filesystem::path& file) {
  std::error_code ignored;
  std::ifstream stream(file, std::ios::binary);
  if (!stream || std::filesystem::is_directory(file, ignored)) {
    throw InputError(file.string(), "cannot be read", "a readable JSON file is needed");
  }
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad()) throw InputError(file.string(), "cannot be read", "a readable JSON file is needed");
  json parsed;
  try {
    DuplicateKeys duplicates(file.string());
    parsed = json::parse(
        text, [&](int depth, json::parse_event_t event, json& value) { return duplicates(depth, event, value); });
  } catch (const json::exception& error) {
    throw InputError(file.string(), fmt::format("not JSON ({})", error.what()), "one JSON object is needed");
  }
  if (!parsed.is_object()) {
    throw InputError(file.string(), fmt::format("holds a JSON {}", parsed.type_name()), "one JSON object is needed");
  }
  return parsed;
}

ConfigFields::ConfigFields(std::string file, std::string prefix, const json& object)
    : file_(std::move(file)), prefix_(std::move(prefix)), object_(object) {}

std::string ConfigFields::dotted(const std::string& name) const {
  return prefix_.empty() ? name : prefix_ + "." + name;
}

void ConfigFields::fail(const std::string& name, const std::string& found, const std::string& allowed) const {
  throw InputError(fmt::format("{}: field {}", file_, dotted(name)), found, allowed);
}

bool ConfigFields::has(const std::string& name) {
  known_.insert(name);
  return object_.contains(name);
}

bool ConfigFields::has_value(const std::string& name) { return has(name) && !object_.at(name).is_null(); }

const json& ConfigFields::known(const std::string& name) {
  ASSAY_CHECK(has(name));
  return object_.at(name);
}

const json& ConfigFields::at(const std::string& name, const std::string& allowed) {
  if (!has(name)) fail(name, "missing", allowed + " (no class default is used)");
  return known(name);
}

std::int64_t ConfigFields::integer(const std::string& name, std::int64_t least, std::int64_t most) {
  const std::string allowed = fmt::format("an integer >= {} is needed", least);
  const json& value = at(name, allowed);
  if (!is_int64(value) || value.get<std::int64_t>() < least) fail(name, shown(value), allowed);
  if (value.get<std::int64_t>() > most) {
    fail(name, shown(value), fmt::format("an integer in {} to {} is needed", least, most));
  }
  return value.get<std::int64_t>();
}

double ConfigFields::real(const std::string& name) {
  const std::string allowed = "a finite number is needed";
  const json& value = at(name, allowed);
  if (!is_finite(value)) fail(name, shown(value), allowed);
  return value.get<double>();
}

double ConfigFields::positive(const std::string& name) {
  const std::string allowed = "a finite number > 0 is needed";
  const json& value = at(name, allowed);
  if (!is_finite(value) || !(value.get<double>() > 0)) fail(name, shown(value), allowed);
  return value.get<double>();
}

double ConfigFields::not_negative(const std::string& name) {
  const std::string allowed = "a finite number >= 0 is needed";
  const json& value = at(name, allowed);
  if (!is_finite(value) || value.get<double>() < 0) fail(name, shown(value), allowed);
  return value.get<double>();
}

bool ConfigFields::boolean(const std::string& name) {
  const std::string allowed = "true or false is needed";
  const json& value = at(name, allowed);
  if (!value.is_boolean()) fail(name, shown(value), allowed);
  return value.get<bool>();
}

std::string ConfigFields::text(const std::string& name) {
  const std::string allowed = "a string is needed";
  const json& value = at(name, allowed);
  if (!value.is_string()) fail(name, shown(value), allowed);
  return value.get<std::string>();
}

std::vector<std::string> ConfigFields::words(const std::string& name, std::size_t length,
                                             const std::string& length_source,
                                             const std::vector<std::string>& allowed) {
  const std::string choice = joined(allowed, " or ") + " is needed";
  const json& value = at(name, fmt::format("a list of {} words, each {}", length, joined(allowed, " or ")));
  if (!value.is_array()) fail(name, shown(value), "a list of words is needed");
  if (value.size() != length) {
    fail(name, fmt::format("{} entries", value.size()),
         fmt::format("{} are needed ({})", length, dotted(length_source)));
  }
  std::vector<std::string> words;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const json& word = value.at(i);
    if (!word.is_string() || std::find(allowed.begin(), allowed.end(), word.get<std::string>()) == allowed.end()) {
      fail(fmt::format("{}[{}]", name, i), shown(word), choice);
    }
    words.push_back(word.get<std::string>());
  }
  return words;
}

std::vector<std::int64_t> ConfigFields::integers(const std::string& name) {
  const json& value = at(name, "a list of integers is needed");
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_int64)) {
    fail(name, shown(value), "a list of integers is needed");
  }
  return value.get<std::vector<std::int64_t>>();
}

ConfigFields ConfigFields::object(const std::string& name) {
  const json& value = at(name, "an object is needed");
  if (!value.is_object()) fail(name, shown(value), "an object is needed");
  return ConfigFields(file_, dotted(name), value);
}

void ConfigFields::need_boolean(const std::string& name, bool value) {
  if (boolean(name) != value) fail(name, shown(!value), fmt::format("this model needs {}", value));
}

void ConfigFields::need_text(const std::string& name, std::string_view value) {
  const std::string allowed = fmt::format("\"{}\" is needed", value);
  const json& found = at(name, allowed);
  if (!found.is_string() || found.get<std::string>() != value) fail(name, shown(found), allowed);
}

void ConfigFields::need_integer(const std::string& name, std::int64_t value) {
  const std::string allowed = fmt::format("{} is needed", value);
  const json& found = at(name, allowed);
  if (!is_int64(found) || found.get<std::int64_t>() != value) fail(name, shown(found), allowed);
}

void ConfigFields::unused_boolean(const std::string& name) {
  if (has_value(name)) boolean(name);
}

void ConfigFields::unused_text(const std::string& name) {
  if (has_value(name)) text(name);
}

void ConfigFields::unused_real(const std::string& name) {
  if (has_value(name)) not_negative(name);
}

void ConfigFields::unused_integer(const std::string& name) {
  if (has_value(name)) integer(name, 0, std::numeric_limits<std::int64_t>::max());
}

void ConfigFields::unused_texts(const std::string& name) {
  if (!has_value(name)) return;
  const json& value = known(name);
  const auto is_text = [](const json& entry) { return entry.is_string(); };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_text)) {
    fail(name, shown(value), "a list of strings is needed");
  }
}

void ConfigFields::unused_token_ids(const std::string& name) {
  if (!has_value(name)) return;
  if (known(name).is_array()) {
    integers(name);
  } else {
    unused_integer(name);
  }
}

std::vector<std::string> ConfigFields::unknown() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    if (known_.count(name) == 0) names.push_back(dotted(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace assay
