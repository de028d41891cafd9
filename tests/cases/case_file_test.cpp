#include "cases/case_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "cases/error.h"

namespace assay {
namespace {

class CaseFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("assay_case_file_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  std::filesystem::path write(const std::string& name, const nlohmann::json& document) const {
    return write(name, document.dump());
  }

  static nlohmann::json good() {
    return {{"assay_case", 1},
            {"name", "kda_dsa"},
            {"title", "four KDA layers and a sparse one"},
            {"checkpoint", "kda_dsa"},
            {"trace", "kda_dsa/f64.safetensors"},
            {"names", "names/transformers.json"},
            {"provenance", "an independent implementation in float64"}};
  }

  /// The message about the good file with one field replaced.
  std::string message(const std::string& field, const nlohmann::json& value) const {
    nlohmann::json document = good();
    document[field] = value;
    return message(write("bad.json", document));
  }
  static std::string message(const std::filesystem::path& file) {
    try {
      read_case_file(file);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  }

  static bool names(const std::string& message, const std::string& field) {
    return message.find("bad.json: field " + field + ": ") != std::string::npos;
  }

  std::filesystem::path folder_;
};

TEST_F(CaseFiles, paths_are_resolved_against_the_folder_of_the_file) {
  const CaseFile read = read_case_file(write("kda_dsa.json", good()));
  EXPECT_EQ(read.name, "kda_dsa");
  EXPECT_EQ(read.title, "four KDA layers and a sparse one");
  EXPECT_EQ(read.checkpoint, folder_ / "kda_dsa");
  EXPECT_EQ(read.trace, folder_ / "kda_dsa/f64.safetensors");
  EXPECT_EQ(read.names, folder_ / "names/transformers.json");
  EXPECT_EQ(read.provenance, "an independent implementation in float64");
}

TEST_F(CaseFiles, every_field_is_needed) {
  const nlohmann::json complete = good();
  for (const auto& [field, value] : complete.items()) {
    nlohmann::json document = good();
    document.erase(field);
    const std::string found = message(write("bad.json", document));
    EXPECT_TRUE(names(found, field) && found.find("missing") != std::string::npos) << found;
  }
}

TEST_F(CaseFiles, wrong_types_are_named) {
  const nlohmann::json complete = good();
  for (const auto& [field, value] : complete.items()) {
    for (const nlohmann::json& wrong : {nlohmann::json(2), nlohmann::json(nullptr), nlohmann::json::array()}) {
      EXPECT_TRUE(names(message(field, wrong), field)) << message(field, wrong);
    }
  }
}

TEST_F(CaseFiles, unknown_fields_are_named) { EXPECT_TRUE(names(message("titel", "x"), "titel")); }

TEST_F(CaseFiles, another_version_is_refused) {
  EXPECT_TRUE(names(message("assay_case", 2), "assay_case"));
  EXPECT_TRUE(names(message("assay_case", true), "assay_case"));
}

TEST_F(CaseFiles, paths_may_not_leave_the_folder) {
  for (const char* field : {"checkpoint", "trace", "names"}) {
    EXPECT_TRUE(names(message(field, "/etc"), field));
    EXPECT_TRUE(names(message(field, "../kda_dsa"), field));
    EXPECT_TRUE(names(message(field, "a/../../b"), field));
    EXPECT_TRUE(names(message(field, ""), field));
    EXPECT_EQ(message(field, "..a/b..c"), "no error");
  }
}

TEST_F(CaseFiles, name_and_title_are_one_line) {
  EXPECT_TRUE(names(message("name", "a\nb"), "name"));
  EXPECT_TRUE(names(message("title", "a\x1b[0m"), "title"));
  EXPECT_EQ(message("provenance", "two\nlines"), "no error");
}

TEST_F(CaseFiles, a_key_may_not_occur_twice) {
  std::string text = good().dump();
  text.insert(text.size() - 1, ",\"name\":\"other\"");
  EXPECT_NE(message(write("bad.json", text)).find("field name: present twice"), std::string::npos);
}

TEST_F(CaseFiles, what_is_no_json_object_is_refused) {
  EXPECT_NE(message(write("bad.json", std::string("[1]"))).find("bad.json"), std::string::npos);
  EXPECT_NE(message(write("bad.json", std::string("{"))).find("not JSON"), std::string::npos);
  EXPECT_NE(message(folder_ / "none.json").find("cannot be read"), std::string::npos);
  EXPECT_NE(message(folder_).find("cannot be read"), std::string::npos);
}

TEST_F(CaseFiles, a_folder_lists_the_files_with_the_key_in_name_order) {
  nlohmann::json second = good();
  second["name"] = "second";
  write("b.json", second);
  write("a.json", good());
  write("other.json", std::string("{\"names\": {}}"));
  write("c.txt", good());
  const std::vector<CaseFile> cases = case_files_in(folder_);
  ASSERT_EQ(cases.size(), 2U);
  EXPECT_EQ(cases[0].name, "kda_dsa");
  EXPECT_EQ(cases[1].name, "second");
  EXPECT_THROW(case_files_in(folder_ / "none"), InputError);
  write("broken.json", std::string("{\"assay_case\": 1}"));
  EXPECT_THROW(case_files_in(folder_), InputError);
}

}  // namespace
}  // namespace assay
