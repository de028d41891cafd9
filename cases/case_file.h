// A case file: a checkpoint and the trace that an implementation left of it, under a name.
//
// {"assay_case": 1, "name": "kda_dsa", "title": "one line", "checkpoint": "kda_dsa", "trace":
// "kda_dsa/f64.safetensors",
//  "names": "names/transformers.json", "provenance": "where the numbers come from"}
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace assay {

struct CaseFile {
  std::filesystem::path file;
  std::string name;
  std::string title;
  // Below the folder of the case file, resolved against it:
  std::filesystem::path checkpoint;  ///< folder
  std::filesystem::path trace;       ///< safetensors
  std::filesystem::path names;       ///< map from the names of the trace to assay's
  std::string provenance;
};

/// Throws InputError naming file and field: unreadable, not JSON, a key that is missing, unknown or there twice, a
/// wrong type, an empty text, a name or title of several lines, a path that is absolute or leaves the folder ("..").
CaseFile read_case_file(const std::filesystem::path& file);

/// The case files of a folder (not of its subfolders) in name order: every *.json with the key "assay_case". Throws
/// InputError for a folder that cannot be read, a *.json that is no JSON object, and a case file that is wrong.
std::vector<CaseFile> case_files_in(const std::filesystem::path& folder);

}  // namespace assay
