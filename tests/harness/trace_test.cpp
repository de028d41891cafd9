#include "harness/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include <nlohmann/json.hpp>

#include "cases/error.h"

#ifndef ASSAY_SOURCE_DIR
#define ASSAY_SOURCE_DIR "."
#endif

namespace assay::harness {
namespace {

using nlohmann::json;

Tensor counting(DType dtype, const Shape& shape) {
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  std::iota(values.begin(), values.end(), 0.0);
  return Tensor::from_reals(dtype, shape, values);
}

/// A trace of two rows of three tokens, a map of names, and the config of the bundled case (5 layers).
class TraceTest : public testing::Test {
 protected:
  TraceTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) / "assay_trace" / test->name();
    std::filesystem::create_directories(folder_);
  }
  ~TraceTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path map_file() const { return folder_ / "names.json"; }
  std::filesystem::path trace_file() const { return folder_ / "trace.safetensors"; }

  Trace read() const { return read_text(names.dump()); }
  Trace read_text(const std::string& text) const {
    std::ofstream(map_file(), std::ios::binary) << text;
    write_safetensors(trace_file(), tensors);
    return read_trace(trace_file(), map_file(), read_config(ASSAY_SOURCE_DIR "/cases/kda_dsa/config.json"));
  }

  /// The complaint about the map, which has to name the file and `parts`.
  void expect_complaint(const std::vector<std::string>& parts) const { expect_complaint(names.dump(), parts); }
  void expect_complaint(const std::string& text, std::vector<std::string> parts,
                        const std::string& file = "names.json") const {
    parts.push_back(file);
    try {
      read_text(text);
      ADD_FAILURE() << "no complaint about " << text;
    } catch (const InputError& error) {
      const std::string message = error.what();
      for (const std::string& part : parts)
        EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
      EXPECT_EQ(message.find('\n'), std::string::npos);
    }
  }

  json names = {{"assay_names", 1},
                {"inputs", {{"input_ids", "input.ids"}}},
                {"judged", "act."},
                {"stages", {{{"stage", "head.norm"}, {"recorded", {"act.norm"}}}}}};
  std::map<std::string, Tensor> tensors = {{"input.ids", counting(DType::kI64, {2, 3})},
                                           {"act.norm", counting(DType::kF32, {2, 3, 4})}};

 private:
  std::filesystem::path folder_;
};

TEST_F(TraceTest, a_record_is_filed_under_its_stage) {
  const Trace trace = read();
  ASSERT_EQ(trace.stages.size(), 1u);
  ASSERT_EQ(trace.stages.at("head.norm").size(), 1u);
  EXPECT_EQ(trace.stages.at("head.norm")[0].name, "act.norm");
  EXPECT_EQ(trace.stages.at("head.norm")[0].tensor.shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(trace.inputs.input_ids.shape(), (Shape{2, 3}));
  EXPECT_FALSE(trace.inputs.labels);
  EXPECT_FALSE(trace.conventions.empty_row_attends_uniformly);
  EXPECT_TRUE(trace.unmapped.empty());
  EXPECT_TRUE(trace.absent.empty());
}

TEST_F(TraceTest, inputs_and_conventions_are_read) {
  names["inputs"]["labels"] = "input.labels";
  names["conventions"] = {{"empty_row_attends_uniformly", true}};
  tensors["input.labels"] = counting(DType::kI64, {2, 3});
  const Trace trace = read();
  EXPECT_TRUE(trace.inputs.labels);
  EXPECT_TRUE(trace.conventions.empty_row_attends_uniformly);
}

TEST_F(TraceTest, layer_attention_and_ffn_run_over_the_layers) {
  names["stages"] = {{{"stage", "layers.{attention}.kda.out"}, {"recorded", {"act.{layer}.attn"}}},
                     {{"stage", "layers.{ffn}.ffn.out"}, {"recorded", {"act.{layer}.mlp"}}}};
  tensors["act.3.attn"] = tensors["act.4.mlp"] = tensors["act.norm"];
  tensors.erase("act.norm");
  const Trace trace = read();
  EXPECT_EQ(trace.stages.count("layers.6.kda.out"), 1u);
  EXPECT_EQ(trace.stages.count("layers.9.ffn.out"), 1u);
  EXPECT_EQ(trace.stages.size(), 2u);
  EXPECT_EQ(trace.absent.size(), 8u);
}

TEST_F(TraceTest, several_records_of_one_stage_are_all_kept) {
  names["stages"][0]["recorded"] = {"act.norm", "act.norm_again"};
  tensors["act.norm_again"] = tensors["act.norm"];
  EXPECT_EQ(read().stages.at("head.norm").size(), 2u);
}

TEST_F(TraceTest, permute_gives_the_order_of_the_records_dimensions) {
  names["stages"][0]["permute"] = {2, 0, 1};
  const Tensor tensor = read().stages.at("head.norm")[0].tensor;
  EXPECT_EQ(tensor.shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(tensor.real(1), 4.0);  // [0, 0, 1] of the stage is [0, 1, 0] of the record
  EXPECT_EQ(tensor.real(6), 1.0);  // [1, 0, 0] is [0, 0, 1]
}

TEST_F(TraceTest, row_slices_the_first_dimension) {
  names["stages"] = {{{"stage", "select[{row}]"}, {"recorded", {"act.norm"}}}};
  const Trace trace = read();
  ASSERT_EQ(trace.stages.count("select[0]"), 1u);
  const Recorded& second = trace.stages.at("select[1]").at(0);
  EXPECT_EQ(second.name, "act.norm[1]");
  EXPECT_EQ(second.tensor.shape(), (Shape{3, 4}));
  EXPECT_EQ(second.tensor.real(0), 12.0);
}

TEST_F(TraceTest, permute_counts_the_dimensions_behind_the_row) {
  names["stages"] = {{{"stage", "select[{row}]"}, {"recorded", {"act.norm"}}, {"permute", {1, 0}}}};
  const Tensor tensor = read().stages.at("select[1]").at(0).tensor;
  EXPECT_EQ(tensor.shape(), (Shape{4, 3}));
  EXPECT_EQ(tensor.real(1), 16.0);
}

TEST_F(TraceTest, row_needs_the_batch_in_front) {
  names["stages"] = {{{"stage", "select[{row}]"}, {"recorded", {"act.norm"}}}};
  tensors["act.norm"] = counting(DType::kF32, {3, 3});
  expect_complaint(names.dump(), {"tensor act.norm", "shape [3, 3]", "the batch, 2"}, "trace.safetensors");
}

TEST_F(TraceTest, judged_names_that_no_stage_claims_are_listed) {
  tensors["act.other"] = tensors["extra"] = tensors["act.norm"];
  EXPECT_EQ(read().unmapped, std::vector<std::string>{"act.other"});
}

TEST_F(TraceTest, inputs_are_claimed_even_if_every_name_is_judged) {
  names.erase("judged");
  tensors["other"] = tensors["act.norm"];
  EXPECT_EQ(read().unmapped, std::vector<std::string>{"other"});
}

TEST_F(TraceTest, mapped_names_that_the_file_lacks_are_listed) {
  names["stages"].push_back({{"stage", "head.logits"}, {"recorded", {"act.logits"}}});
  EXPECT_EQ(read().absent, std::vector<std::string>{"act.logits"});
}

TEST_F(TraceTest, input_ids_are_needed) {
  tensors.erase("input.ids");
  expect_complaint(names.dump(), {"no input_ids", "names.json"}, "trace.safetensors");
  names.erase("inputs");
  expect_complaint(names.dump(), {"no input_ids"}, "trace.safetensors");
}

TEST_F(TraceTest, input_ids_have_two_dimensions) {
  tensors["input.ids"] = counting(DType::kI64, {6});
  expect_complaint(names.dump(), {"input_ids", "shape [6]", "[batch, tokens]"}, "trace.safetensors");
}

TEST_F(TraceTest, a_trace_without_a_known_stage_is_refused) {
  tensors.erase("act.norm");
  expect_complaint(names.dump(), {"no recorded stage", "names.json"}, "trace.safetensors");
}

TEST_F(TraceTest, a_map_that_is_missing_or_not_json_is_refused) {
  expect_complaint("{\"assay_names\": 1,", {"not JSON"});
  std::filesystem::remove(map_file());
  write_safetensors(trace_file(), tensors);
  const ModelConfig config = read_config(ASSAY_SOURCE_DIR "/cases/kda_dsa/config.json");
  try {
    read_trace(trace_file(), map_file(), config);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("names.json: cannot be read"), std::string::npos) << error.what();
  }
}

TEST_F(TraceTest, the_maps_version_is_1) {
  for (const json& version : {json(2), json("1"), json()}) {
    names["assay_names"] = version;
    expect_complaint({"field assay_names"});
  }
  names.erase("assay_names");
  expect_complaint({"field assay_names"});
  expect_complaint("[]", {"field assay_names"});
}

struct WrongField {
  const char* pointer;
  json value;
  std::vector<std::string> parts;
};

class TraceMap : public TraceTest, public testing::WithParamInterface<WrongField> {};

TEST_P(TraceMap, wrong_field_is_named) {
  names[json::json_pointer(GetParam().pointer)] = GetParam().value;
  expect_complaint(GetParam().parts);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, TraceMap,
    testing::Values(
        WrongField{"/stagse", json::array(), {"field stagse", "unknown", "stages and gradients are allowed"}},
        WrongField{"/judged", 1, {"field judged", "wrong type"}},
        WrongField{"/stages", json::object(), {"field stages", "wrong type"}},
        WrongField{"/conventions", true, {"field conventions"}},
        WrongField{"/conventions", {{"nonsense", true}}, {"field conventions.nonsense", "empty_row_attends_uniformly"}},
        WrongField{"/conventions",
                   {{"empty_row_attends_uniformly", 1}},
                   {"field conventions.empty_row_attends_uniformly", "1"}},
        WrongField{"/inputs/tokens", "input.ids", {"field inputs.tokens", "input_ids"}},
        WrongField{"/inputs/labels", 3, {"field inputs.labels", "3"}},
        WrongField{"/stages/0", "head.norm", {"field stages[0]", "such an object is needed"}},
        WrongField{"/stages/0/stage", 1, {"field stages[0]"}},
        WrongField{"/stages/0/recorded", "act.norm", {"field stages[0]", "recorded"}},
        WrongField{"/stages/0/recorded/0", 5, {"field stages[0].recorded", "5"}},
        WrongField{"/stages/0/order", {0, 1, 2}, {"field stages[0].order", "unknown", "permute"}},
        WrongField{"/stages/0/permute", "102", {"field stages[0].permute", "a list of dimensions"}},
        WrongField{"/stages/0/permute", {0, 1, "2"}, {"field stages[0].permute", "each dimension from 0 once"}},
        WrongField{
            "/stages/0/permute", {0, 0, 1}, {"field stages[0].permute", "[0,0,1]", "each dimension from 0 once"}},
        WrongField{"/stages/0/permute", {1, 2, 3}, {"field stages[0].permute", "[1,2,3]"}},
        WrongField{"/stages/0/permute", {-1, 0, 1}, {"field stages[0].permute", "[-1,0,1]"}},
        WrongField{"/stages/0/permute", {4294967296, 1, 2}, {"field stages[0].permute"}}));

TEST_F(TraceTest, permute_of_another_rank_names_the_tensor) {
  names["stages"][0]["permute"] = {1, 0};
  expect_complaint(names.dump(), {"tensor act.norm", "shape [2, 3, 4]", "2 dimensions are needed"},
                   "trace.safetensors");
}

}  // namespace
}  // namespace assay::harness
