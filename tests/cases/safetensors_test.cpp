#include "cases/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases/error.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::path(testing::TempDir()) / "assay_safetensors_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    file_ = folder_ / "model.safetensors";
  }
  void TearDown() override { fs::remove_all(folder_); }

  static void write_bytes(const fs::path& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary) << bytes;
  }

  static std::string read_bytes(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  static std::string length_bytes(std::uint64_t length) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFF);
    return bytes;
  }

  /// A file of this header and this many zero bytes of data.
  static void write_raw(const fs::path& file, const std::string& header, std::size_t data_bytes) {
    write_bytes(file, length_bytes(header.size()) + header + std::string(data_bytes, '\0'));
  }

  /// What opening the file says; must be an InputError that names the file.
  std::string fault() const {
    return message_of([&] { TensorFile::open(file_); }, file_);
  }

  std::string fault_of(const std::string& header, std::size_t data_bytes) const {
    write_raw(file_, header, data_bytes);
    return fault();
  }

  template <typename Action>
  static std::string message_of(Action action, const fs::path& named) {
    try {
      action();
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(named.string()));
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "no InputError";
  }

  std::vector<std::string> names_in_folder() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    return names;
  }

  fs::path folder_;
  fs::path file_;
};

/// The header entry of a tensor.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

std::string header(const std::vector<std::string>& entries) { return fmt::format("{{{}}}", fmt::join(entries, ",")); }

TEST_F(Safetensors, tensors_and_metadata_read_back) {
  const std::vector<double> values{1, -2, 0.5, 448, 0, 3};
  const std::map<std::string, Tensor> tensors{
      {"a", Tensor::from_reals(DType::kE4M3, {3}, std::vector<double>{1, 2, 3})},
      {"b.weight", Tensor::from_reals(DType::kF32, {2, 3}, values)},  // begins at byte 3: not aligned
      {"c", Tensor::from_reals(DType::kBF16, {}, std::vector<double>{2})},
      {"d \"quoted\" \xC3\xA9", Tensor::from_integers(DType::kI64, {1}, std::vector<std::int64_t>{-5})},
      {"empty", Tensor::zeros(DType::kF64, {4, 0})}};
  write_safetensors(file_, tensors, {{"format", "pt"}});
  const TensorFile read = TensorFile::open(file_);
  ASSERT_EQ(read.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(read.at(name).dtype(), tensor.dtype()) << name;
    EXPECT_EQ(read.at(name).shape(), tensor.shape()) << name;
    EXPECT_EQ(read.at(name).reals(), tensor.reals()) << name;
  }
  EXPECT_EQ(read.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(read.path(), file_);
  EXPECT_TRUE(read.has("c"));
  EXPECT_FALSE(read.has("x"));
}

TEST_F(Safetensors, every_dtype_reads_back) {
  std::map<std::string, Tensor> tensors;
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    const auto dtype = static_cast<DType>(i);
    tensors.emplace(name_of(dtype), Tensor::from_reals(dtype, {2}, std::vector<double>{1, 1}));
  }
  write_safetensors(file_, tensors);
  const TensorFile read = TensorFile::open(file_);
  ASSERT_EQ(read.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : read.tensors()) {
    EXPECT_EQ(name_of(tensor.dtype()), name);
    EXPECT_THAT(tensor.reals(), ElementsAre(1.0, 1.0)) << name;
  }
}

TEST_F(Safetensors, the_written_bytes_are_the_documented_layout) {
  write_safetensors(file_, {{"w", Tensor::from_reals(DType::kF32, {1}, std::vector<double>{1})}}, {{"k", "v"}});
  std::string header =
      "{\"__metadata__\":{\"k\":\"v\"},\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(read_bytes(file_), length_bytes(header.size()) + header + std::string("\0\0\x80\x3f", 4));
}

TEST_F(Safetensors, a_file_without_tensors_is_legal) {
  write_safetensors(file_, {});
  EXPECT_TRUE(TensorFile::open(file_).tensors().empty());
}

TEST_F(Safetensors, tensors_outlive_the_file_object) {
  write_safetensors(file_, {{"w", Tensor::from_reals(DType::kF32, {1}, std::vector<double>{7})}});
  const Tensor tensor = TensorFile::open(file_).at("w");
  fs::remove(file_);
  EXPECT_EQ(tensor.real(0), 7);
}

TEST_F(Safetensors, a_file_can_be_rewritten_from_its_own_tensors) {
  write_safetensors(file_, {{"w", Tensor::from_reals(DType::kF32, {1}, std::vector<double>{7})}});
  const TensorFile read = TensorFile::open(file_);
  write_safetensors(file_, {{"v", read.at("w")}, {"w", read.at("w")}});
  EXPECT_EQ(TensorFile::open(file_).at("v").real(0), 7);
  EXPECT_EQ(read.at("w").real(0), 7);
}

TEST_F(Safetensors, an_absent_tensor_is_named) {
  write_safetensors(file_, {});
  const TensorFile read = TensorFile::open(file_);
  EXPECT_THAT(message_of([&] { read.at("x.weight"); }, file_), HasSubstr("tensor \"x.weight\": absent"));
}

TEST_F(Safetensors, an_absent_file_is_refused) { EXPECT_THAT(fault(), HasSubstr("cannot open: No such file")); }

TEST_F(Safetensors, a_folder_or_a_pipe_is_not_a_file) {
  EXPECT_THAT(message_of([&] { TensorFile::open(folder_); }, folder_), HasSubstr("not a regular file"));
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THAT(fault(), HasSubstr("not a regular file"));
}

TEST_F(Safetensors, a_file_shorter_than_its_length_field_is_truncated) {
  write_bytes(file_, "");
  EXPECT_THAT(fault(), HasSubstr("truncated: 0 bytes"));
  write_bytes(file_, "1234567");
  EXPECT_THAT(fault(), HasSubstr("truncated: 7 bytes"));
}

TEST_F(Safetensors, a_header_length_of_2_to_the_63_fails_at_once) {
  write_bytes(file_, length_bytes(std::uint64_t{1} << 63));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(fault(), HasSubstr("header length 9223372036854775808 is longer than the file; at most 0 bytes left"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(100));
}

TEST_F(Safetensors, a_header_length_of_2_to_the_64_minus_1_is_longer_than_the_file) {
  write_bytes(file_, length_bytes(~std::uint64_t{0}) + "{}");
  EXPECT_THAT(fault(), HasSubstr("is longer than the file; at most 2 bytes left"));
}

TEST_F(Safetensors, a_header_above_100_MB_is_refused) {
  write_bytes(file_, length_bytes(100'000'001));
  fs::resize_file(file_, 8 + 100'000'001);  // sparse
  EXPECT_THAT(fault(), HasSubstr("header length 100000001 is above 100 MB"));
}

TEST_F(Safetensors, a_header_that_is_not_json_is_refused) {
  for (const char* header : {"", "{", "{\"a\":}", "nonsense", "{} {}", "{\"a\":1e999}", "{\"\xFF\":1}"})
    EXPECT_THAT(fault_of(header, 0), HasSubstr("header is not JSON")) << header;
}

TEST_F(Safetensors, a_header_must_be_an_object) {
  EXPECT_THAT(fault_of("[]", 0), HasSubstr("header is an array; a JSON object allowed"));
}

TEST_F(Safetensors, deep_nesting_is_refused) {
  EXPECT_THAT(fault_of(std::string("{\"a\":").append(100'000, '['), 0), HasSubstr("header nests too deeply"));
}

TEST_F(Safetensors, a_message_does_not_repeat_a_long_name) {
  EXPECT_LT(fault_of(std::string("{\"").append(100'000, 'n') + "\":1}", 0).size(), 1000U);
  EXPECT_LT(fault_of(std::string("{\"").append(100'000, 'n'), 0).size(), 1000U);
}

TEST_F(Safetensors, a_name_with_a_line_break_is_escaped) {
  EXPECT_THAT(fault_of("{\"a\\nb\":1}", 0), HasSubstr("tensor \"a\\nb\": entry is 1; an object allowed"));
}

TEST_F(Safetensors, a_duplicate_tensor_is_refused) {
  const std::string twice = header({entry("a", "U8", "[2]", "[0,2]"), entry("a", "U8", "[2]", "[0,2]")});
  EXPECT_THAT(fault_of(twice, 2), HasSubstr("duplicate name \"a\""));
}

TEST_F(Safetensors, a_duplicate_field_is_refused) {
  EXPECT_THAT(fault_of("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2),
              HasSubstr("duplicate name \"dtype\""));
}

TEST_F(Safetensors, an_unknown_dtype_is_refused) {
  EXPECT_THAT(fault_of(header({entry("a", "F4", "[2]", "[0,2]")}), 2), HasSubstr("tensor \"a\": unknown dtype \"F4\""));
  EXPECT_THAT(fault_of("{\"a\":{\"dtype\":3,\"shape\":[2],\"data_offsets\":[0,2]}}", 2), HasSubstr("unknown dtype 3"));
}

TEST_F(Safetensors, a_missing_or_unknown_field_is_refused) {
  EXPECT_THAT(fault_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[2]}}", 2),
              HasSubstr("tensor \"a\": field data_offsets is missing"));
  EXPECT_THAT(fault_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"strides\":[1]}}", 2),
              HasSubstr("tensor \"a\": unknown field \"strides\""));
}

TEST_F(Safetensors, a_shape_that_overflows_is_refused) {
  EXPECT_THAT(fault_of(header({entry("a", "U8", "[4294967296,4294967296]", "[0,0]")}), 0),
              HasSubstr("tensor \"a\": shape [4294967296, 4294967296] overflows"));
  EXPECT_THAT(fault_of(header({entry("a", "F64", "[2305843009213693952]", "[0,0]")}), 0), HasSubstr("overflows"));
}

TEST_F(Safetensors, a_dimension_that_is_no_count_is_refused) {
  for (const char* dimension : {"-1", "1.5", "\"2\"", "null", "9223372036854775808", "99999999999999999999"})
    EXPECT_THAT(fault_of(header({entry("a", "U8", fmt::format("[{}]", dimension), "[0,2]")}), 2),
                HasSubstr("tensor \"a\": dimension "))
        << dimension;
  EXPECT_THAT(fault_of(header({entry("a", "U8", "2", "[0,2]")}), 2), HasSubstr("tensor \"a\": shape is 2"));
}

TEST_F(Safetensors, malformed_offsets_are_refused) {
  for (const char* offsets : {"[0]", "[0,1,2]", "[-2,0]", "[0,2.0]", "{}", "2"})
    EXPECT_THAT(fault_of(header({entry("a", "U8", "[2]", offsets)}), 2),
                HasSubstr("tensor \"a\": data_offsets malformed"))
        << offsets;
}

TEST_F(Safetensors, offsets_out_of_order_are_refused) {
  EXPECT_THAT(fault_of(header({entry("a", "U8", "[2]", "[2,0]")}), 2),
              HasSubstr("tensor \"a\": data_offsets [2, 0] out of order"));
}

TEST_F(Safetensors, offsets_of_the_wrong_length_are_refused) {
  EXPECT_THAT(fault_of(header({entry("a", "F32", "[2]", "[0,4]")}), 4),
              HasSubstr("tensor \"a\": data_offsets [0, 4] of the wrong length; 8 bytes for F32 [2]"));
}

TEST_F(Safetensors, truncated_data_are_refused) {
  EXPECT_THAT(fault_of(header({entry("a", "F32", "[2]", "[0,8]")}), 5),
              HasSubstr("tensor \"a\": data_offsets [0, 8] end beyond the data: truncated file; 5 data bytes present"));
}

TEST_F(Safetensors, an_enormous_tensor_in_a_small_file_is_truncated) {
  EXPECT_THAT(fault_of(header({entry("a", "U8", "[9223372036854775807]", "[0,9223372036854775807]")}), 2),
              HasSubstr("truncated file"));
}

TEST_F(Safetensors, overlapping_tensors_are_refused) {
  EXPECT_THAT(fault_of(header({entry("a", "U8", "[4]", "[0,4]"), entry("b", "U8", "[4]", "[2,6]")}), 6),
              HasSubstr("tensor \"b\": data_offsets [2, 6] overlap the tensor before; begin at 4 allowed"));
}

TEST_F(Safetensors, a_hole_is_refused) {
  EXPECT_THAT(fault_of(header({entry("a", "U8", "[2]", "[0,2]"), entry("b", "U8", "[2]", "[4,6]")}), 6),
              HasSubstr("tensor \"b\": data_offsets [4, 6] leave a hole; begin at 2 allowed"));
  EXPECT_THAT(fault_of(header({entry("a", "U8", "[2]", "[1,3]")}), 3), HasSubstr("leave a hole; begin at 0 allowed"));
}

TEST_F(Safetensors, trailing_bytes_are_refused) {
  EXPECT_THAT(fault_of(header({entry("a", "U8", "[2]", "[0,2]")}), 5),
              HasSubstr("3 trailing bytes after the last tensor"));
}

TEST_F(Safetensors, metadata_must_be_strings) {
  EXPECT_THAT(fault_of("{\"__metadata__\":{\"step\":3}}", 0),
              HasSubstr("__metadata__: \"step\" is 3; strings allowed"));
  EXPECT_THAT(fault_of("{\"__metadata__\":[]}", 0), HasSubstr("__metadata__: value is an array"));
}

class ShardedSafetensors : public Safetensors {
 protected:
  void SetUp() override {
    Safetensors::SetUp();
    index_ = folder_ / "model.safetensors.index.json";
    shard("one", {{"a", 1}, {"b", 2}}, {{"format", "pt"}, {"part", "1"}});
    shard("two", {{"c", 3}}, {{"format", "pt"}, {"part", "2"}});
  }

  void shard(const std::string& name, const std::map<std::string, double>& values,
             const std::map<std::string, std::string>& metadata = {}) const {
    std::map<std::string, Tensor> tensors;
    for (const auto& [key, value] : values)
      tensors.emplace(key, Tensor::from_reals(DType::kF32, {1}, std::vector<double>{value}));
    write_safetensors(folder_ / name, tensors, metadata);
  }

  std::string fault_of_map(const std::string& weight_map, const std::string& named) const {
    write_bytes(index_, "{\"metadata\":{\"total_size\":12},\"weight_map\":" + weight_map + "}");
    return message_of([&] { TensorFile::open_folder(folder_); }, folder_ / named);
  }

  fs::path index_;
};

TEST_F(ShardedSafetensors, tensors_of_all_shards_are_found) {
  write_bytes(index_, "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a\":\"one\",\"b\":\"one\",\"c\":\"two\"}}");
  const TensorFile read = TensorFile::open_folder(folder_);
  EXPECT_EQ(read.at("a").real(0), 1);
  EXPECT_EQ(read.at("b").real(0), 2);
  EXPECT_EQ(read.at("c").real(0), 3);
  EXPECT_EQ(read.path(), index_);
}

TEST_F(ShardedSafetensors, metadata_on_which_the_shards_disagree_are_left_out) {
  write_bytes(index_, "{\"weight_map\":{\"a\":\"one\",\"b\":\"one\",\"c\":\"two\"}}");
  EXPECT_EQ(TensorFile::open_folder(folder_).metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
}

TEST_F(ShardedSafetensors, a_single_file_needs_no_index) {
  shard("model.safetensors", {{"z", 9}});
  EXPECT_EQ(TensorFile::open_folder(folder_).at("z").real(0), 9);
}

TEST_F(ShardedSafetensors, a_folder_without_tensors_is_refused) {
  EXPECT_THAT(message_of([&] { TensorFile::open_folder(folder_); }, folder_),
              HasSubstr("model.safetensors or model.safetensors.index.json required"));
}

TEST_F(ShardedSafetensors, a_missing_shard_is_named) {
  EXPECT_THAT(fault_of_map("{\"a\":\"one\",\"b\":\"one\",\"c\":\"three\"}", index_.filename()),
              HasSubstr("shard \"three\" is missing"));
}

TEST_F(ShardedSafetensors, a_tensor_absent_in_its_shard_is_named) {
  EXPECT_THAT(fault_of_map("{\"a\":\"one\",\"b\":\"one\",\"c\":\"two\",\"d\":\"two\"}", index_.filename()),
              HasSubstr("tensor \"d\": absent in its shard \"two\""));
}

TEST_F(ShardedSafetensors, a_tensor_that_the_index_does_not_name_is_refused) {
  EXPECT_THAT(fault_of_map("{\"a\":\"one\",\"c\":\"two\"}", "one"), HasSubstr("tensor \"b\": not named by the index"));
}

TEST_F(ShardedSafetensors, a_tensor_in_another_shard_than_the_index_says_is_refused) {
  EXPECT_THAT(fault_of_map("{\"a\":\"one\",\"b\":\"two\",\"c\":\"two\"}", "one"),
              HasSubstr("tensor \"b\": the index " + index_.string() + " places it in \"two\""));
}

TEST_F(ShardedSafetensors, a_shard_outside_the_folder_is_refused) {
  for (const char* shard : {"../one", "/etc/passwd", "sub/one", "sub\\\\one", "..", ".", "", "one..two", "one\\u0000"})
    EXPECT_THAT(fault_of_map(fmt::format(R"({{"a":"{}"}})", shard), index_.filename()),
                HasSubstr("is not a plain file name"))
        << shard;
}

TEST_F(ShardedSafetensors, a_malformed_index_is_refused) {
  const std::string name = index_.filename();
  EXPECT_THAT(fault_of_map("[]", name), HasSubstr("no object weight_map"));
  EXPECT_THAT(fault_of_map("{\"a\":1}", name), HasSubstr("tensor \"a\": shard is 1"));
  EXPECT_THAT(fault_of_map("{\"a\":\"one\",\"a\":\"two\"}", name), HasSubstr("index has the duplicate name \"a\""));
  EXPECT_THAT(fault_of_map("{", name), HasSubstr("index is not JSON"));
}

TEST_F(ShardedSafetensors, a_faulty_shard_is_named) {
  write_bytes(folder_ / "two", "");
  EXPECT_THAT(fault_of_map("{\"a\":\"one\",\"b\":\"one\",\"c\":\"two\"}", "two"), HasSubstr("truncated: 0 bytes"));
}

TEST_F(Safetensors, a_failed_write_leaves_the_old_file_and_no_temporary) {
  fs::create_directory(file_);
  EXPECT_THAT(message_of([&] { write_safetensors(file_, {}); }, file_), HasSubstr("cannot rename the temporary file"));
  EXPECT_THAT(names_in_folder(), ElementsAre("model.safetensors"));
  EXPECT_TRUE(fs::is_directory(file_));
}

TEST_F(Safetensors, writing_into_a_missing_folder_names_the_file) {
  const fs::path file = folder_ / "missing" / "x.json";
  EXPECT_THAT(message_of([&] { write_file_atomically(file, "x"); }, file), HasSubstr("cannot create"));
  EXPECT_THAT(message_of([&] { write_file_atomically(folder_ / "", "x"); }, folder_), HasSubstr("not a file name"));
}

TEST_F(Safetensors, text_replaces_the_old_file_and_leaves_no_temporary) {
  const fs::path file = folder_ / "golden.json";
  write_file_atomically(file, "old and longer");
  write_file_atomically(file, "new\n");
  EXPECT_EQ(read_bytes(file), "new\n");
  EXPECT_THAT(names_in_folder(), ElementsAre("golden.json"));
}

TEST_F(Safetensors, a_name_of_the_greatest_length_can_be_written) {
  const fs::path file = folder_ / std::string(255, 'x');
  write_file_atomically(file, "text");
  EXPECT_EQ(read_bytes(file), "text");
}

TEST_F(Safetensors, names_that_the_format_cannot_hold_are_refused) {
  EXPECT_THAT(message_of(
                  [&] {
                    write_safetensors(file_, {{"__metadata__", Tensor()}});
                  },
                  file_),
              HasSubstr("reserved name"));
  EXPECT_THAT(message_of([&] { write_safetensors(file_, {{"\xFF", Tensor()}}); }, file_), HasSubstr("not UTF-8"));
  EXPECT_FALSE(fs::exists(file_));
}

}  // namespace
}  // namespace assay
