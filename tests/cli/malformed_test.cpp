// Malformed inputs: each has its own message of one line, exit status 2 and no results.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <ostream>

#include <nlohmann/json.hpp>

#include "cases/safetensors.h"
#include "program.h"

namespace assay::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Tensors = std::map<std::string, Tensor>;

const fs::path kCase = ASSAY_SOURCE_DIR "/cases/kda_dsa";
const std::string kTraceWords = "verify --checkpoint c --trace t.safetensors";

void write(const std::string& file, const std::string& text) {
  fs::remove(file);
  std::ofstream(file, std::ios::binary) << text;
}

/// A safetensors file of any header.
std::string raw_tensors(const std::string& header, std::size_t data_bytes) {
  std::string text(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return text + header + std::string(data_bytes, '\0');
}

std::string change_config(const std::function<void(json&)>& change) {
  json config = json::parse(text_of(kCase / "config.json"));
  change(config);
  write("c/config.json", config.dump());
  return kTraceWords;
}

std::string change_file(const std::string& file, const fs::path& source, const std::function<void(Tensors&)>& change) {
  Tensors tensors = TensorFile::open(source).tensors();
  change(tensors);
  write_safetensors(file, tensors);
  return kTraceWords;
}

std::string change_model(const std::function<void(Tensors&)>& change) {
  return change_file("c/model.safetensors", kCase / "model.safetensors", change);
}

std::string change_trace(const std::function<void(Tensors&)>& change) {
  return change_file("t.safetensors", kCase / "f64.safetensors", change);
}

Tensor with_integer(const Tensor& tensor, std::size_t at, std::int64_t value) {
  std::vector<std::int64_t> values = tensor.integers();
  values[at] = value;
  return Tensor::from_integers(tensor.dtype(), tensor.shape(), values);
}

/// A case file beside c and t.safetensors, after `change`.
std::string change_case(const std::function<void(json&)>& change) {
  json given = {{"assay_case", 1},          {"name", "made"},        {"title", "made"},     {"checkpoint", "c"},
                {"trace", "t.safetensors"}, {"names", "names.json"}, {"provenance", "made"}};
  change(given);
  write("case.json", given.dump());
  return "verify case.json";
}

std::string with_names(const std::string& text) {
  write("names.json", text);
  return kTraceWords + " --names names.json";
}

std::string vectors(const std::map<std::string, std::string>& metadata) {
  write_safetensors("v.safetensors", {{"mhc_sinkhorn.a.in.logits", Tensor::zeros(DType::kF32, {1, 4, 4})}}, metadata);
  return "verify --vectors v.safetensors";
}

struct Malformed {
  const char* name;
  std::function<std::string()> words;  ///< makes the input and gives the command line
  std::vector<std::string> parts;      ///< of the message
};

void PrintTo(const Malformed& malformed, std::ostream* out) { *out << malformed.name; }

/// A folder with the checkpoint c and the trace t.safetensors of the bundled case, in which the program runs.
class MalformedInput : public testing::TestWithParam<Malformed> {
 protected:
  MalformedInput() : before_(fs::current_path()) {
    fs::current_path(folder_.path());
    fs::create_directory("c");
    fs::create_symlink(kCase / "config.json", "c/config.json");
    fs::create_symlink(kCase / "model.safetensors", "c/model.safetensors");
    fs::create_symlink(kCase / "f64.safetensors", "t.safetensors");
  }
  ~MalformedInput() override { fs::current_path(before_); }

 private:
  fs::path before_;
  Folder folder_;
};

TEST_P(MalformedInput, is_refused_with_its_own_message) {
  const std::string words = GetParam().words();
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = run(words);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(outcome.status, 2) << words;
  EXPECT_EQ(outcome.out, "");
  for (const std::string& part : GetParam().parts)
    EXPECT_TRUE(is_complaint(outcome.err, part)) << part << " in " << outcome.err;
  EXPECT_LT(seconds.count(), 5.0);
  EXPECT_FALSE(fs::exists("result.json"));
  EXPECT_FALSE(fs::exists("junit.xml"));
}

std::vector<Malformed> command_lines() {
  const auto words = [](const std::string& text) { return [text] { return text; }; };
  return {
      {"no_command", words(""), {"command: missing", "verify"}},
      {"unknown_command", words("vreify x"), {"command 'vreify'", "verify"}},
      {"unknown_option", words(kTraceWords + " --tolerance 1e-3"), {"--tolerance"}},
      {"nothing_to_judge", words("verify"), {"nothing to judge", "--vectors"}},
      {"checkpoint_without_trace", words("verify --checkpoint c"), {"--checkpoint given", "--trace"}},
      {"trace_without_checkpoint", words("verify --trace t.safetensors"), {"--trace given", "--checkpoint"}},
      {"case_and_vectors", words("verify a.json --vectors v.safetensors"), {"CASE and --vectors given"}},
      {"few_bits", words(kTraceWords + " --scalar ball --bits 10"), {"--bits", "53"}},
      {"unknown_scalar", words(kTraceWords + " --scalar quad"), {"--scalar", "quad", "double, real, ball"}},
      {"negative_jobs", words(kTraceWords + " --jobs -1"), {"--jobs", "1024"}},
      {"jobs_no_number", words(kTraceWords + " --jobs many"), {"--jobs", "many"}},
      {"empty_trace_name", words("verify --checkpoint c --trace ''"), {"--trace", "empty"}},
      {"filter_of_no_stage", words(kTraceWords + " --filter 'layers.99.*'"), {"--filter", "no stage or case matches"}},
      {"json_in_no_folder", words(kTraceWords + " --json nowhere/r.json"), {"nowhere/r.json", "no folder nowhere"}},
      {"json_is_a_folder", words(kTraceWords + " --json c"), {"c: a folder", "file name"}},
      {"junit_in_no_folder", words(kTraceWords + " --junit nowhere/j.xml"), {"nowhere/j.xml", "no folder nowhere"}},
  };
}

INSTANTIATE_TEST_SUITE_P(CommandLine, MalformedInput, testing::ValuesIn(command_lines()));

std::vector<Malformed> case_files() {
  return {
      {"case_missing", [] { return "verify nowhere.json"; }, {"nowhere.json"}},
      {"case_is_a_folder", [] { return "verify c"; }, {"c: "}},
      {"case_not_json",
       [] {
         write("case.json", "{\"assay_case\": 1,\n");
         return "verify case.json";
       },
       {"case.json", "JSON"}},
      {"case_unknown_key", [] { return change_case([](json& c) { c["tolerance"] = 1; }); }, {"tolerance", "unknown"}},
      {"case_without_trace", [] { return change_case([](json& c) { c.erase("trace"); }); }, {"trace", "missing"}},
      {"case_of_another_version", [] { return change_case([](json& c) { c["assay_case"] = 2; }); }, {"assay_case"}},
      {"case_path_escapes",
       [] { return change_case([](json& c) { c["checkpoint"] = "../c"; }); },
       {"checkpoint", "\"..\""}},
      {"case_path_is_absolute",
       [] { return change_case([](json& c) { c["names"] = "/etc/names.json"; }); },
       {"names", "absolute path"}},
  };
}

INSTANTIATE_TEST_SUITE_P(CaseFile, MalformedInput, testing::ValuesIn(case_files()));

std::vector<Malformed> configs() {
  return {
      {"no_checkpoint_folder",
       [] { return "verify --checkpoint nowhere --trace t.safetensors"; },
       {"nowhere/config.json"}},
      {"no_config",
       [] {
         fs::remove("c/config.json");
         return kTraceWords;
       },
       {"c/config.json"}},
      {"config_not_json",
       [] {
         write("c/config.json", "{");
         return kTraceWords;
       },
       {"c/config.json", "JSON"}},
      {"no_index_kpool",
       [] { return change_config([](json& c) { c["text_config"].erase("index_kpool"); }); },
       {"index_kpool", "missing"}},
      {"index_topk_no_multiple",
       [] {
         return change_config(
             [](json& c) { c["text_config"]["index_topk"] = 4 * c["text_config"]["index_kpool"].get<int>() + 1; });
       },
       {"index_topk", "multiple"}},
      {"hidden_size_a_text",
       [] { return change_config([](json& c) { c["text_config"]["hidden_size"] = "64"; }); },
       {"hidden_size", "\"64\""}},
      {"layer_types_too_few",
       [] { return change_config([](json& c) { c["text_config"]["layer_types"].erase(0); }); },
       {"layer_types", "4 entries"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Config, MalformedInput, testing::ValuesIn(configs()));

const std::string kNorm = "model.language_model.layers.0.input_layernorm.weight";

std::vector<Malformed> checkpoints() {
  const auto model = [](const std::string& text) {
    return [text] {
      write("c/model.safetensors", text);
      return kTraceWords;
    };
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string b = R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]})";
  return {
      {"no_tensors",
       [] {
         fs::remove("c/model.safetensors");
         return kTraceWords;
       },
       {"model.safetensors"}},
      {"model_empty", model(""), {"model.safetensors", "truncated: 0 bytes"}},
      {"model_truncated",
       [] {
         const std::string whole = text_of(kCase / "model.safetensors");
         write("c/model.safetensors", whole.substr(0, whole.size() - 1));
         return kTraceWords;
       },
       {"model.safetensors", "truncated"}},
      {"header_longer_than_the_file",
       model(raw_tensors("{" + a + "}", 0).substr(0, 20)),
       {"model.safetensors", "longer than the file"}},
      {"header_not_json", model(raw_tensors("{\"a\":", 0)), {"model.safetensors", "header is not JSON"}},
      {"tensors_overlap", model(raw_tensors("{" + a + "," + b + "}", 12)), {"tensor \"b\"", "overlap"}},
      {"duplicate_names", model(raw_tensors("{" + a + "," + a + "}", 8)), {"duplicate name", "a"}},
      {"weight_missing",
       [] { return change_model([](Tensors& t) { t.erase(kNorm); }); },
       {"tensor " + kNorm + ": missing"}},
      {"weight_of_wrong_shape",
       [] { return change_model([](Tensors& t) { t[kNorm] = Tensor::zeros(DType::kBF16, {3}); }); },
       {"tensor " + kNorm + ": wrong shape: [3]", "is needed"}},
      {"weight_of_integers",
       [] { return change_model([](Tensors& t) { t[kNorm] = Tensor::zeros(DType::kI32, t[kNorm].shape()); }); },
       {"tensor " + kNorm + ": wrong dtype: I32", "is needed"}},
      {"several_faults",
       [] {
         return change_model([](Tensors& t) {
           t.erase(kNorm);
           t.erase("lm_head.weight");
         });
       },
       {"tensor lm_head.weight: missing", "and 1 more", "assay inspect checkpoint"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, MalformedInput, testing::ValuesIn(checkpoints()));

std::vector<Malformed> traces() {
  const std::string ids = "input.input_ids", labels = "input.labels", experts = "act.layers.1.mlp.gate.2";
  return {
      {"no_trace", [] { return "verify --checkpoint c --trace nowhere.safetensors"; }, {"nowhere.safetensors"}},
      {"trace_is_a_folder", [] { return "verify --checkpoint c --trace c"; }, {"c: not a regular file"}},
      {"trace_without_input_ids",
       [=] { return change_trace([=](Tensors& t) { t.erase(ids); }); },
       {"t.safetensors: no input_ids", "inputs.input_ids"}},
      {"trace_without_stages",
       [=] { return change_trace([=](Tensors& t) {
               t = {{ids, t.at(ids)}};
             }); },
       {"no recorded stage"}},
      {"token_out_of_range",
       [=] { return change_trace([=](Tensors& t) { t[ids] = with_integer(t[ids], 7, 192); }); },
       {"input_ids element 7: 192", "0 to 191"}},
      {"experts_no_integers",
       [=] { return change_trace([=](Tensors& t) { t[experts] = Tensor::zeros(DType::kF32, t[experts].shape()); }); },
       {"tensor " + experts + ": F32", "integers"}},
      {"ids_no_integers",
       [=] { return change_trace([=](Tensors& t) { t[ids] = Tensor::zeros(DType::kF32, t[ids].shape()); }); },
       {"input_ids: F32", "integers"}},
      {"stage_of_wrong_shape",
       [] {
         return change_trace([](Tensors& t) { t["act.layers.0.attn_hc.0"] = t["act.layers.0.attn_hc.0"].rows(0, 1); });
       },
       {"tensor act.layers.0.attn_hc.0: shape [1, 45, 4]", "elements"}},
      {"labels_all_ignored",
       [=] {
         return change_trace([=](Tensors& t) {
           const std::vector<std::int64_t> ignored(static_cast<std::size_t>(t[labels].size()), -100);
           t[labels] = Tensor::from_integers(DType::kI64, t[labels].shape(), ignored);
         });
       },
       {"every label is ignored"}},
      {"label_out_of_range",
       [=] { return change_trace([=](Tensors& t) { t[labels] = with_integer(t[labels], 3, -5); }); },
       {"labels[", "-5", "-100"}},
      {"labels_of_wrong_shape",
       [=] { return change_trace([=](Tensors& t) { t[labels] = t[labels].rows(0, 1); }); },
       {"labels: shape [1, 45]", "[2, 45]"}},
      {"expert_out_of_range",
       [=] { return change_trace([=](Tensors& t) { t[experts] = with_integer(t[experts], 3, 8); }); },
       {"experts: 8", "0 to 7"}},
      {"names_not_json", [] { return with_names("{\"assay_names\": 1,"); }, {"names.json: not JSON"}},
      {"names_unknown_field",
       [] { return with_names(R"({"assay_names": 1, "stage": []})"); },
       {"names.json: field stage: unknown"}},
      {"names_without_input_ids", [] { return with_names(R"({"assay_names": 1})"); }, {"no input_ids", "names.json"}},
      {"names_missing", [] { return kTraceWords + " --names nowhere.json"; }, {"nowhere.json: cannot be read"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Trace, MalformedInput, testing::ValuesIn(traces()));

std::vector<Malformed> vector_files() {
  return {
      {"no_vectors", [] { return "verify --vectors nowhere.safetensors"; }, {"nowhere.safetensors"}},
      {"vectors_without_metadata", [] { return vectors({}); }, {"v.safetensors: metadata field cases: missing"}},
      {"metadata_not_json",
       [] {
         return vectors({{"cases", "{"}});
       },
       {"metadata field cases: not JSON"}},
      {"metadata_without_the_case",
       [] {
         return vectors({{"cases", "{}"}});
       },
       {"tensor mhc_sinkhorn.a.in.logits", "belongs to no case"}},
      {"flag_missing",
       [] {
         return vectors({{"cases", R"({"mhc_sinkhorn.a": {}})"}});
       },
       {"mhc_sinkhorn.a", "iterations"}},
      {"flag_of_wrong_kind",
       [] {
         return vectors({{"cases", R"({"mhc_sinkhorn.a": {"iterations": "many", "eps": 1e-6}})"}});
       },
       {"mhc_sinkhorn.a", "iterations", "many"}},
      {"filter_of_no_case",
       [] {
         return vectors({{"cases", R"({"mhc_sinkhorn.a": {"iterations": 1, "eps": 1e-6}})"}}) + " --filter b";
       },
       {"--filter b", "no stage or case matches"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Vectors, MalformedInput, testing::ValuesIn(vector_files()));

}  // namespace
}  // namespace assay::test
