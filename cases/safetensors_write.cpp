// The writing half of cases/safetensors.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cases/error.h"
#include "cases/safetensors.h"

namespace assay {
namespace {

constexpr std::size_t kHeaderAlignment = 8;
constexpr std::size_t kMaxHeaderBytes = 100'000'000;  // the limit of the safetensors library
constexpr char kMetadataName[] = "__metadata__";

/// A file that appears under its name complete or not at all.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& file) : file_(file) {
    if (!file.has_filename()) throw InputError(file.string(), "not a file name", "");
    static std::atomic<unsigned> serial{0};
    constexpr std::size_t kMaxNameBytes = 200;  // leaves room for the suffix within NAME_MAX
    const std::string name = file.filename().string().substr(0, kMaxNameBytes);
    do {
      temporary_ = file;
      temporary_.replace_filename(fmt::format(".{}.{}.{}.tmp", name, ::getpid(), serial++));
      descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) fail("create a temporary file beside it");
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!committed_) ::unlink(temporary_.c_str());
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  void commit() {
    if (::fsync(descriptor_) != 0) fail("sync");
    const int closed = ::close(descriptor_);
    descriptor_ = -1;
    if (closed != 0) fail("close");
    if (::rename(temporary_.c_str(), file_.c_str()) != 0) fail("rename the temporary file");
    committed_ = true;
    sync_folder();
  }

 private:
  [[noreturn]] void fail(const char* action) const {
    throw InputError(file_.string(), fmt::format("cannot {}: {}", action, std::strerror(errno)), "");
  }

  /// Makes the new name durable. Some file systems cannot sync a folder (EINVAL); the file itself is safe already.
  void sync_folder() const {
    const std::filesystem::path folder = file_.has_parent_path() ? file_.parent_path() : ".";
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;  // a folder that may be written but not read
    const int error = ::fsync(descriptor) == 0 ? 0 : errno;
    ::close(descriptor);
    if (error == EIO)
      throw InputError(file_.string(), fmt::format("cannot sync its folder: {}", std::strerror(error)), "");
  }

  std::filesystem::path file_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  bool committed_ = false;
};

/// A JSON string; text that is not UTF-8 has none.
std::string json_string(const std::string& text, const std::filesystem::path& file) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw InputError(file.string(), "a name or metadata string is not UTF-8", "UTF-8 required");
  }
}

}  // namespace

void write_safetensors(const std::filesystem::path& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += fmt::format("\"{}\":{{", kMetadataName);
    for (const auto& [key, value] : metadata) header += json_string(key, file) + ":" + json_string(value, file) + ",";
    header.back() = '}';
    header += ',';
  }
  std::size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadataName) throw InputError(file.string(), "a tensor is named __metadata__", "reserved name");
    const std::size_t end = offset + tensor.bytes().size();
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", json_string(name, file),
                          name_of(tensor.dtype()), fmt::join(tensor.shape(), ","), offset, end);
    offset = end;
  }
  if (header.back() == ',')
    header.back() = '}';
  else
    header += '}';
  header.resize((header.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  if (header.size() > kMaxHeaderBytes)
    throw InputError(file.string(), fmt::format("header of {} bytes", header.size()),
                     fmt::format("at most {} allowed", kMaxHeaderBytes));

  AtomicFile output(file);
  const std::uint64_t length = header.size();  // little endian, as tensor.cpp demands of the machine
  output.write(std::as_bytes(std::span(&length, 1)));
  output.write(std::as_bytes(std::span(header)));
  for (const auto& [name, tensor] : tensors) output.write(tensor.bytes());
  output.commit();
}

void write_file_atomically(const std::filesystem::path& file, const std::string& text) {
  AtomicFile output(file);
  output.write(std::as_bytes(std::span(text)));
  output.commit();
}

}  // namespace assay
