// Runs the program and keeps what it printed.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace assay::test {

struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
};

inline std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// A folder for the files of one test, removed at its end.
class Folder {
 public:
  Folder() {
    static int serial = 0;
    const std::string name = "assay_cli_" + std::to_string(::getpid()) + "_" + std::to_string(serial++);
    path_ = std::filesystem::temp_directory_path() / name;
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

/// `words` are shell text behind the program's name.
inline Outcome run(const std::string& words, const std::string& input = "") {
  const Folder folder;
  const std::string in = folder.write("in", input);
  const std::string err = (folder.path() / "err").string();
  const std::string command = std::string("'") + ASSAY_PROGRAM + "' " + words + " <'" + in + "' 2>'" + err + "'";
  Outcome outcome;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.out.append(buffer.data(), n);
  }
  const int result = ::pclose(pipe);
  outcome.status = WIFEXITED(result) ? WEXITSTATUS(result) : -1;
  outcome.err = text_of(err);
  return outcome;
}

/// True if `text` is one line "assay: ..." that holds `part`.
inline bool is_complaint(const std::string& text, const std::string& part) {
  return text.compare(0, 7, "assay: ") == 0 && text.find('\n') == text.size() - 1 &&
         text.find(part) != std::string::npos;
}

}  // namespace assay::test
