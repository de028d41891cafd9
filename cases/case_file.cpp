#include "cases/case_file.h"

#include <algorithm>
#include <string_view>

#include "cases/config_fields.h"
#include "cases/error.h"

namespace assay {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr const char* kMark = "assay_case";

class Reader {
 public:
  Reader(const std::filesystem::path& file, const nlohmann::json& object)
      : file_(file), fields_(file.string(), "", object) {}

  CaseFile read() {
    need(kMark, "1 is needed");
    fields_.need_integer(kMark, kVersion);
    CaseFile result{.file = file_,
                    .name = line("name"),
                    .title = line("title"),
                    .checkpoint = path("checkpoint"),
                    .trace = path("trace"),
                    .names = path("names"),
                    .provenance = text("provenance")};
    const std::vector<std::string> unknown = fields_.unknown();
    if (!unknown.empty()) {
      fields_.fail(unknown.front(), "unknown",
                   "allowed: assay_case, name, title, checkpoint, trace, names, provenance");
    }
    return result;
  }

 private:
  void need(const std::string& name, const std::string& allowed) {
    if (!fields_.has(name)) fields_.fail(name, "missing", allowed);
  }

  std::string text(const std::string& name) {
    need(name, "a string is needed");
    std::string value = fields_.text(name);
    if (value.empty()) fields_.fail(name, "empty", "a text is needed");
    return value;
  }

  std::string line(const std::string& name) {
    std::string value = text(name);
    const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
    if (std::any_of(value.begin(), value.end(), is_control)) {
      fields_.fail(name, "several lines or control characters", "one line of text is needed");
    }
    return value;
  }

  std::filesystem::path path(const std::string& name) {
    const std::string allowed = "a path below the folder of the case file is needed";
    const std::string value = line(name);
    const std::filesystem::path relative(value);
    if (relative.is_absolute()) fields_.fail(name, "absolute path \"" + value + "\"", allowed);
    if (std::find(relative.begin(), relative.end(), "..") != relative.end()) {
      fields_.fail(name, "\"..\" in \"" + value + "\"", allowed);
    }
    return file_.parent_path() / relative;
  }

  const std::filesystem::path& file_;
  ConfigFields fields_;
};

}  // namespace

CaseFile read_case_file(const std::filesystem::path& file) {
  const nlohmann::json object = read_json_object(file);
  return Reader(file, object).read();
}

std::vector<CaseFile> case_files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  try {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".json" && !entry.is_directory()) files.push_back(entry.path());
    }
  } catch (const std::filesystem::filesystem_error& error) {
    throw InputError(folder.string(), error.code().message(), "a readable folder of case files is needed");
  }
  std::sort(files.begin(), files.end());
  std::vector<CaseFile> cases;
  for (const std::filesystem::path& file : files) {
    const nlohmann::json object = read_json_object(file);
    if (object.contains(kMark)) cases.push_back(Reader(file, object).read());
  }
  return cases;
}

}  // namespace assay
