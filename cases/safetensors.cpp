#include "cases/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cases/error.h"

namespace assay {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the safetensors library
constexpr int kMaxJsonDepth = 8;                        // the format itself needs 3
constexpr std::size_t kMaxQuotedBytes = 200;
constexpr char kMetadataName[] = "__metadata__";

std::string shortened(std::string text) {
  if (text.size() > kMaxQuotedBytes) text = text.substr(0, kMaxQuotedBytes) + "...";
  return text;
}

/// Text from a file, safe to print on one line.
std::string quoted(const std::string& text) {
  return shortened(Json(text.substr(0, kMaxQuotedBytes + 1)).dump(-1, ' ', true, Json::error_handler_t::replace));
}

std::string printed(const Json& value) {
  return value.is_structured() ? std::string("an ") + value.type_name()
                               : shortened(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

/// A whole file mapped for reading.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& file) {
    // O_NONBLOCK: a pipe must be refused, not waited for.
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) throw InputError(file.string(), std::string("cannot open: ") + std::strerror(errno), "");
    struct stat status {};
    const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
    int map_error = 0;
    if (regular && status.st_size > 0) {
      size_ = static_cast<std::size_t>(status.st_size);
      void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (address == MAP_FAILED)
        map_error = errno;
      else
        address_ = address;
    }
    ::close(descriptor);
    if (!regular) throw InputError(file.string(), "not a regular file", "");
    if (map_error != 0)
      throw EnvironmentError(
          fmt::format("{}: cannot map {} bytes: {}", file.string(), size_, std::strerror(map_error)));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (address_ != nullptr) ::munmap(address_, size_);
  }

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(address_), size_}; }

 private:
  void* address_ = nullptr;
  std::size_t size_ = 0;
};

/// Parses JSON, refusing names that occur twice in one object, and deep nesting.
Json parse_json(std::span<const std::byte> bytes, const std::string& where, const std::string& what) {
  std::vector<std::set<std::string>> names;  // of the open objects, outermost first
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      if (depth >= kMaxJsonDepth)
        throw InputError(where, what + " nests too deeply", fmt::format("at most {} levels allowed", kMaxJsonDepth));
      if (event == Json::parse_event_t::object_start) names.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names.back().insert(name).second)
        throw InputError(where, fmt::format("{} has the duplicate name {}", what, quoted(name)), "each name once");
    }
    return true;
  };
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  try {
    return Json::parse(text, text + bytes.size(), check);
  } catch (const Json::exception& error) {
    throw InputError(where, what + " is not JSON: " + shortened(error.what()), "");
  }
}

/// False when this cannot be told: opening the file then says why.
bool is_absent(const std::filesystem::path& file) {
  std::error_code error;
  return std::filesystem::status(file, error).type() == std::filesystem::file_type::not_found;
}

struct Entry {
  std::string name;
  DType dtype;
  Shape shape;
  std::uint64_t begin;
  std::uint64_t end;
};

Shape parse_shape(const Json& json, const std::string& where) {
  if (!json.is_array()) throw InputError(where, "shape is " + printed(json), "an array of integers allowed");
  Shape shape;
  for (const Json& dimension : json) {
    const bool fits =
        dimension.is_number_unsigned() &&
        dimension.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!fits) throw InputError(where, "dimension " + printed(dimension), "integers from 0 to 2^63 - 1 allowed");
    shape.push_back(dimension.get<std::int64_t>());
  }
  return shape;
}

/// Checks everything of one tensor that does not depend on the others.
Entry parse_entry(const std::string& name, const Json& json, std::uint64_t data_bytes, const std::string& file) {
  const std::string where = fmt::format("{}: tensor {}", file, quoted(name));
  if (!json.is_object()) throw InputError(where, "entry is " + printed(json), "an object allowed");
  constexpr std::array<const char*, 3> kFields{"dtype", "shape", "data_offsets"};
  for (const char* field : kFields)
    if (!json.contains(field)) throw InputError(where, fmt::format("field {} is missing", field), "");
  for (const auto& item : json.items())
    if (std::find(kFields.begin(), kFields.end(), item.key()) == kFields.end())
      throw InputError(where, "unknown field " + quoted(item.key()), "dtype, shape, data_offsets allowed");

  const Json& dtype_name = json["dtype"];
  const auto dtype = dtype_name.is_string() ? dtype_named(dtype_name.get_ref<const std::string&>()) : std::nullopt;
  if (!dtype)
    throw InputError(
        where, "unknown dtype " + printed(dtype_name),
        "BOOL, U8, I8, U16, I16, U32, I32, U64, I64, F8_E4M3, F8_E5M2, F8_E8M0, BF16, F16, F32, F64 allowed");

  Entry entry{name, *dtype, parse_shape(json["shape"], where), 0, 0};
  std::int64_t length = 0;
  bool overflow = false;
  try {
    overflow = __builtin_mul_overflow(element_count(entry.shape), std::int64_t{size_of(*dtype)}, &length);
  } catch (const InputError&) {
    overflow = true;  // dimensions are not negative here: only the product can be at fault
  }
  if (overflow)
    throw InputError(where, "shape " + shortened(to_string(entry.shape)) + " overflows", "at most 2^63 - 1 bytes");

  const Json& offsets = json["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned())
    throw InputError(where, "data_offsets malformed", "[begin, end] of two integers from 0 allowed");
  entry.begin = offsets[0].get<std::uint64_t>();
  entry.end = offsets[1].get<std::uint64_t>();
  const std::string found = fmt::format("data_offsets [{}, {}]", entry.begin, entry.end);
  if (entry.begin > entry.end) throw InputError(where, found + " out of order", "begin <= end");
  if (entry.end - entry.begin != static_cast<std::uint64_t>(length))
    throw InputError(where, found + " of the wrong length",
                     fmt::format("{} bytes for {} {}", length, name_of(*dtype), shortened(to_string(entry.shape))));
  if (entry.end > data_bytes)
    throw InputError(where, found + " end beyond the data: truncated file",
                     fmt::format("{} data bytes present", data_bytes));
  return entry;
}

/// The entries, ordered by offset, must cover the data without hole or overlap.
void check_coverage(std::vector<Entry>& entries, std::uint64_t data_bytes, const std::string& file) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    const std::string where = fmt::format("{}: tensor {}", file, quoted(entry.name));
    const std::string found = fmt::format("data_offsets [{}, {}]", entry.begin, entry.end);
    const std::string allowed = fmt::format("begin at {} allowed", covered);
    if (entry.begin < covered) throw InputError(where, found + " overlap the tensor before", allowed);
    if (entry.begin > covered) throw InputError(where, found + " leave a hole", allowed);
    covered = entry.end;
  }
  if (covered != data_bytes)
    throw InputError(file, fmt::format("{} trailing bytes after the last tensor", data_bytes - covered),
                     "none allowed");
}

std::map<std::string, std::string> parse_metadata(const Json& json, const std::string& file) {
  const std::string where = fmt::format("{}: {}", file, kMetadataName);
  if (!json.is_object()) throw InputError(where, "value is " + printed(json), "an object of strings allowed");
  std::map<std::string, std::string> metadata;
  for (const auto& item : json.items()) {
    if (!item.value().is_string())
      throw InputError(where, fmt::format("{} is {}", quoted(item.key()), printed(item.value())), "strings allowed");
    metadata[item.key()] = item.value().get<std::string>();
  }
  return metadata;
}

/// The JSON of a mapped safetensors file, and where its data begin.
std::pair<Json, std::size_t> parse_header(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < kLengthBytes)
    throw InputError(file, fmt::format("truncated: {} bytes", bytes.size()), "at least 8 for the header length");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const std::uint64_t rest = bytes.size() - kLengthBytes;
  if (length > rest)
    throw InputError(file, fmt::format("header length {} is longer than the file", length),
                     fmt::format("at most {} bytes left", rest));
  if (length > kMaxHeaderBytes)
    throw InputError(file, fmt::format("header length {} is above 100 MB", length),
                     fmt::format("at most {} allowed", kMaxHeaderBytes));
  Json header = parse_json(bytes.subspan(kLengthBytes, length), file, "header");
  if (!header.is_object()) throw InputError(file, "header is " + printed(header), "a JSON object allowed");
  return {std::move(header), kLengthBytes + length};
}

/// Tensor name -> shard, from the index; shard names are plain file names.
std::map<std::string, std::string> parse_weight_map(const Json& index, const std::string& file) {
  const bool valid = index.is_object() && index.contains("weight_map") && index["weight_map"].is_object();
  if (!valid) throw InputError(file, "no object weight_map", "{\"weight_map\": {name: shard}} required");
  std::map<std::string, std::string> weight_map;
  for (const auto& item : index["weight_map"].items()) {
    const std::string where = fmt::format("{}: tensor {}", file, quoted(item.key()));
    if (!item.value().is_string()) throw InputError(where, "shard is " + printed(item.value()), "a string allowed");
    const auto& shard = item.value().get_ref<const std::string&>();
    const bool control =
        std::any_of(shard.begin(), shard.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; });
    if (shard.empty() || shard == "." || control || shard.find_first_of("/\\") != std::string::npos ||
        shard.find("..") != std::string::npos)
      throw InputError(where, "shard name " + quoted(shard) + " is not a plain file name",
                       "a file of the same folder, without path separator or \"..\"");
    weight_map[item.key()] = shard;
  }
  return weight_map;
}

}  // namespace

TensorFile TensorFile::open(const std::filesystem::path& file) {
  const auto mapping = std::make_shared<const Mapping>(file);
  const std::string where = file.string();
  const auto [header, data_begin] = parse_header(mapping->bytes(), where);
  const std::span<const std::byte> data = mapping->bytes().subspan(data_begin);

  TensorFile result;
  result.path_ = file;
  std::vector<Entry> entries;
  for (const auto& item : header.items()) {
    if (item.key() == kMetadataName)
      result.metadata_ = parse_metadata(item.value(), where);
    else
      entries.push_back(parse_entry(item.key(), item.value(), data.size(), where));
  }
  check_coverage(entries, data.size(), where);
  for (Entry& entry : entries)
    result.tensors_.emplace(entry.name, Tensor::view(entry.dtype, std::move(entry.shape),
                                                     data.subspan(entry.begin, entry.end - entry.begin), mapping));
  return result;
}

TensorFile TensorFile::open_folder(const std::filesystem::path& folder) {
  const std::filesystem::path single = folder / "model.safetensors";
  const std::filesystem::path index_file = folder / "model.safetensors.index.json";
  if (!is_absent(single)) return open(single);
  if (is_absent(index_file))
    throw InputError(folder.string(), "no tensors", "model.safetensors or model.safetensors.index.json required");

  const std::string where = index_file.string();
  const Mapping mapping(index_file);
  if (mapping.bytes().size() > kMaxHeaderBytes)
    throw InputError(where, fmt::format("index of {} bytes is above 100 MB", mapping.bytes().size()),
                     fmt::format("at most {} allowed", kMaxHeaderBytes));
  const Json index = parse_json(mapping.bytes(), where, "index");
  const std::map<std::string, std::string> weight_map = parse_weight_map(index, where);
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);

  TensorFile result;
  result.path_ = index_file;
  std::set<std::string> disputed;  // metadata on which the shards disagree: neither value speaks for the checkpoint
  for (const std::string& shard : shards) {
    const std::filesystem::path shard_file = folder / shard;
    if (is_absent(shard_file))
      throw InputError(where, "shard " + quoted(shard) + " is missing", "every shard of weight_map required");
    const TensorFile part = open(shard_file);
    for (const auto& [name, tensor] : part.tensors_) {
      const auto place = weight_map.find(name);
      const std::string tensor_where = fmt::format("{}: tensor {}", shard_file.string(), quoted(name));
      if (place == weight_map.end())
        throw InputError(tensor_where, "not named by the index " + where, "only tensors of weight_map allowed");
      if (place->second != shard)
        throw InputError(tensor_where, "the index " + where + " places it in " + quoted(place->second), "");
      result.tensors_.emplace(name, tensor);
    }
    for (const auto& [key, value] : part.metadata_)
      if (const auto [known, inserted] = result.metadata_.emplace(key, value); !inserted && known->second != value)
        disputed.insert(key);
  }
  for (const auto& [name, shard] : weight_map)
    if (!result.has(name))
      throw InputError(fmt::format("{}: tensor {}", where, quoted(name)), "absent in its shard " + quoted(shard), "");
  for (const std::string& key : disputed) result.metadata_.erase(key);
  return result;
}

const Tensor& TensorFile::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw InputError(fmt::format("{}: tensor {}", path_.string(), quoted(name)), "absent",
                     fmt::format("{} tensors present", tensors_.size()));
  return found->second;
}

}  // namespace assay
