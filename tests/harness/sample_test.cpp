// Plans and sampled calls of large ops (harness/sample.h), full-width ones of the model included.
#include "harness/sample.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "cases/error.h"
#include "reference/evaluate.h"

namespace assay::harness {
namespace {

using nlohmann::json;
using reference::Array;
using reference::Results;

std::shared_ptr<OperandSource> normal(DType dtype, const Shape& shape, std::uint64_t seed, double scale = 1.0,
                                      double offset = 0.0) {
  return std::make_shared<RandomSource>(dtype, shape, seed, Distribution::kNormal, scale, offset);
}

std::shared_ptr<OperandSource> indices(const Shape& shape, const std::vector<std::int64_t>& values) {
  return std::make_shared<HeldSource>(Tensor::from_integers(DType::kI32, shape, values));
}

Sources product(std::int64_t rows, std::int64_t columns, std::int64_t inner) {
  return {{"x", normal(DType::kBF16, {rows, inner}, 1)}, {"weight", normal(DType::kBF16, {columns, inner}, 2, 0.02)}};
}

TEST(Sample, a_small_call_is_whole_and_a_large_one_a_sample) {
  const OpCall small = shapes_of(op_named("linear"), json::object(), product(8, 16, 32));
  EXPECT_TRUE(plan_sample(small, "y").whole);
  EXPECT_EQ(to_string(plan_sample(small, "y")), "linear y: whole");
  const OpCall large = shapes_of(op_named("linear"), json::object(), product(4096, 4096, 12288));
  const SamplePlan plan = plan_sample(large, "y");
  EXPECT_FALSE(plan.whole);
  // 1e7 / (2 * 12288 + 1) entries: 20 x 20.
  EXPECT_EQ(plan.indices.at("...").size(), 20U);
  EXPECT_EQ(plan.indices.at("N").size(), 20U);
  EXPECT_DOUBLE_EQ(plan.fraction, 400.0 / (4096.0 * 4096.0));
  EXPECT_EQ(to_string(plan),
            "linear y: sample, seed 1, fraction 2.4e-05 of the outputs: 20 of 4096 rows, 20 of 4096 N");
}

TEST(Sample, an_output_without_independent_parts_is_whole) {
  const Sources sources{{"x", normal(DType::kBF16, {4096, 4096}, 1)},
                        {"weight", normal(DType::kBF16, {4096}, 2)},
                        {"d_y", normal(DType::kBF16, {4096, 4096}, 3)}};
  const OpCall call = shapes_of(op_named("rms_norm.backward"), {{"eps", 1e-5}}, sources);
  EXPECT_TRUE(plan_sample(call, "d_weight").whole);
  EXPECT_FALSE(plan_sample(call, "d_x").whole);
}

TEST(Sample, a_plan_has_the_ends_and_tile_edges_and_depends_on_the_seed_only) {
  const OpCall call = shapes_of(op_named("linear"), json::object(), product(4096, 4096, 12288));
  const SamplePlan plan = plan_sample(call, "y", {1e7, 5});
  EXPECT_EQ(plan.indices, plan_sample(call, "y", {1e7, 5}).indices);
  EXPECT_NE(plan.indices, plan_sample(call, "y", {1e7, 6}).indices);
  for (const auto& [symbol, chosen] : plan.indices) {
    EXPECT_EQ(chosen.front(), 0);
    EXPECT_EQ(chosen.back(), 4095);
    EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    // Half of the 18 between the ends are at edges of tiles of 64, one in each ninth of those.
    const auto edges = std::count_if(chosen.begin() + 1, chosen.end() - 1, [](std::int64_t i) {
      return i >= 63 && (i % 64 == 63 || i % 64 == 0 || i % 64 == 1);
    });
    EXPECT_GE(edges, 9) << symbol;
    // The others are one in each ninth of what is left.
    for (std::int64_t ninth = 0; ninth < 9; ++ninth) {
      const auto inside = [&](std::int64_t i) { return i >= 4096 * ninth / 9 && i < 4096 * (ninth + 1) / 9; };
      EXPECT_GE(std::count_if(chosen.begin(), chosen.end(), inside), 1) << symbol << " ninth " << ninth;
    }
  }
}

TEST(Sample, the_largest_outputs_are_added) {
  const OpCall call = shapes_of(op_named("linear"), json::object(), product(300, 200, 4000));
  SamplePlan plan = plan_sample(call, "y", {1e5, 3});
  std::vector<double> values(300 * 200, 0.5);
  values[123 * 200 + 45] = -9.0;
  values[222 * 200 + 111] = std::nan("");
  const Tensor candidate = Tensor::from_reals(DType::kF32, {300, 200}, values);
  const double before = plan.fraction;
  add_largest(plan, call, candidate, 2);
  for (const std::int64_t row : {123, 222})
    EXPECT_EQ(std::count(plan.indices.at("...").begin(), plan.indices.at("...").end(), row), 1);
  for (const std::int64_t column : {45, 111})
    EXPECT_EQ(std::count(plan.indices.at("N").begin(), plan.indices.at("N").end(), column), 1);
  EXPECT_GT(plan.fraction, before);
  const SampledCall sampled = make_sampled_call(call, product(300, 200, 4000), plan);
  const Tensor observed = gather_output(candidate, sampled);
  const std::vector<std::int64_t> places = sampled_elements(sampled, {300, 200});
  ASSERT_EQ(observed.size(), static_cast<std::int64_t>(places.size()));
  const auto found = std::find(places.begin(), places.end(), 123 * 200 + 45);
  ASSERT_NE(found, places.end());
  EXPECT_EQ(observed.real(found - places.begin()), -9.0);
}

/// The scale of row block 3 and column block 4 stands for their codes; d_dt_bias [H*D] for a head and a channel.
TEST(Sample, places_of_large_outputs_are_found_on_derived_axes) {
  const Sources rows{{"x", normal(DType::kBF16, {1024, 1280}, 1)}};
  const OpCall quantize = shapes_of(op_named("quantize_block"), {{"block_rows", 128}}, rows);
  SamplePlan plan = plan_sample(quantize, "scale_inv", {40000, 3});
  plan.indices = {{"R", {0}}, {"C", {0}}};
  std::vector<double> scales(8 * 10, 1.0);
  scales[3 * 10 + 4] = 2.0;
  add_largest(plan, quantize, Tensor::from_reals(DType::kF32, {8, 10}, scales), 1);
  EXPECT_EQ(plan.indices.at("R"), (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(plan.indices.at("C"), (std::vector<std::int64_t>{0, 4}));
  EXPECT_DOUBLE_EQ(plan.fraction, 4.0 / 80.0);

  const Sources gate{{"f", normal(DType::kBF16, {4096, 64, 128}, 1)},
                     {"A_log", normal(DType::kF32, {64}, 2)},
                     {"dt_bias", normal(DType::kF32, {64 * 128}, 3)},
                     {"d_g", normal(DType::kF32, {4096, 64, 128}, 4)}};
  const OpCall backward = shapes_of(op_named("kda_gate.backward"), json::object(), gate);
  plan = plan_sample(backward, "d_dt_bias");
  plan.indices = {{"H", {1}}, {"D", {2}}};
  std::vector<double> gradient(64 * 128, 0.0);
  gradient[40 * 128 + 99] = -1.0;
  add_largest(plan, backward, Tensor::from_reals(DType::kF32, {64 * 128}, gradient), 1);
  EXPECT_EQ(plan.indices.at("H"), (std::vector<std::int64_t>{1, 40}));
  EXPECT_EQ(plan.indices.at("D"), (std::vector<std::int64_t>{2, 99}));
}

TEST(Sample, an_embedding_keeps_the_rows_of_chosen_ids_only) {
  std::vector<std::int64_t> ids(4096);
  for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<std::int64_t>(random_bits(9, t) % 154880);
  const Sources sources{{"ids", indices({4096}, ids)}, {"table", normal(DType::kBF16, {154880, 4096}, 1)}};
  const OpCall whole = shapes_of(op_named("embed"), json::object(), sources);
  const SampledCall sampled = make_sampled_call(whole, sources, plan_sample(whole, "x", {3e4, 1}));
  EXPECT_LE(sampled.call.dims.at("V"), sampled.call.dims.at("T"));
  EXPECT_EQ(sampled.call.dims.at("T"), 122);  // 3e4 elements, one of the table and one of x for each: 122 x 122
}

TEST(Sample, random_elements_depend_on_seed_and_place_only) {
  const RandomSource source(DType::kBF16, {288, 4096, 6144}, 7);
  const Tensor one = source.gather({{{287}}, {{4095}}, {{1, 6143}}});
  const Tensor row = source.gather({{{287}}, {{4095}}, std::nullopt});
  EXPECT_EQ(one.code(0), row.code(1));
  EXPECT_EQ(one.code(1), row.code(6143));
  double sum = 0.0, squares = 0.0;
  for (const double x : row.reals()) {
    sum += x;
    squares += x * x;
  }
  // Mean and variance of 6144 numbers: within five standard errors of 0 and 1.
  EXPECT_LT(std::abs(sum / 6144), 5 / std::sqrt(6144.0));
  EXPECT_LT(std::abs(squares / 6144 - 1), 5 * std::sqrt(2 / 6144.0));
  EXPECT_NE(RandomSource(DType::kBF16, {64}, 1).whole().reals(), RandomSource(DType::kBF16, {64}, 2).whole().reals());
  for (const double x : RandomSource(DType::kF64, {100}, 3, Distribution::kUniform, 2.0, 1.0).whole().reals()) {
    EXPECT_GE(x, -1.0);
    EXPECT_LT(x, 3.0);
  }
}

TEST(Sample, wrong_use_is_refused) {
  const Sources sources = product(300, 200, 4000);
  const OpCall call = shapes_of(op_named("linear"), json::object(), sources);
  EXPECT_THROW(plan_sample(call, "z"), InputError);
  EXPECT_THROW(plan_sample(call, "y", {0.0, 1}), InputError);
  const SamplePlan plan = plan_sample(call, "y", {1e5, 1});
  const auto refused = [&](auto change) {
    SamplePlan changed = plan;
    change(changed);
    EXPECT_THROW(make_sampled_call(call, sources, changed), InputError);
  };
  refused([](SamplePlan& p) { p.op = "gelu"; });
  refused([](SamplePlan& p) { p.indices["K"] = {0}; });
  refused([](SamplePlan& p) { p.indices.erase("N"); });
  refused([](SamplePlan& p) { p.indices["N"] = {0, 200}; });
  refused([](SamplePlan& p) { p.indices["N"] = {3, 3}; });
  EXPECT_THROW(make_sampled_call(call, {{"x", sources.at("x")}}, plan), InputError);
  EXPECT_THROW(sources.at("x")->gather({{{300}}, std::nullopt}), InputError);
  EXPECT_THROW(sources.at("x")->gather({std::nullopt}), InputError);
  EXPECT_THROW(RandomSource(DType::kI32, {4}, 1), InputError);
}

/// Plans, evaluates in double and checks count and finiteness, in less than two seconds.
SamplePlan expect_quick(const char* op, const json& attributes, const Sources& sources, const std::string& output,
                        const Shape& shape, const SamplePlan* given = nullptr) {
  const auto start = std::chrono::steady_clock::now();
  const OpCall whole = shapes_of(op_named(op), attributes, sources);
  const SamplePlan plan = given != nullptr ? *given : plan_sample(whole, output);
  EXPECT_FALSE(plan.whole);
  const SampledCall sampled = make_sampled_call(whole, sources, plan);
  const Results<double> results = reference::evaluate<double>(sampled.call);
  const Array<double>& values = std::get<Array<double>>(results.at(output));
  const Coverage coverage = coverage_of(sampled, shape);
  EXPECT_EQ(values.size(), coverage.chosen);
  EXPECT_EQ(sampled_elements(sampled, shape).size(), values.data.size());
  EXPECT_EQ(coverage.all, element_count(shape));
  if (given == nullptr) {
    EXPECT_DOUBLE_EQ(coverage.fraction, plan.fraction);
  }
  EXPECT_TRUE(std::all_of(values.data.begin(), values.data.end(), [](double x) { return std::isfinite(x); }));
  EXPECT_FALSE(std::all_of(values.data.begin(), values.data.end(), [](double x) { return x == 0.0; }));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 2.0) << to_string(plan);
  return plan;
}

TEST(Sample, a_full_width_product_is_quick) {
  expect_quick("linear", json::object(), product(4096, 4096, 12288), "y", {4096, 4096});
}

TEST(Sample, grouped_weights_of_288_experts_are_read_where_chosen) {
  std::vector<std::int64_t> offsets{0};
  for (int e = 0; e < 288; ++e) offsets.push_back(offsets.back() + (e % 3 == 0 ? 0 : 170 + e % 2));
  const std::int64_t rows = offsets.back();
  const Sources sources{{"x", normal(DType::kBF16, {rows, 4096}, 1)},
                        {"offsets", indices({289}, offsets)},
                        {"weight", normal(DType::kBF16, {288, 1536, 4096}, 2, 0.02)}};
  const OpCall whole = shapes_of(op_named("grouped_linear"), json::object(), sources);
  const SamplePlan plan = plan_sample(whole, "y", {1e6, 1});
  expect_quick("grouped_linear", json::object(), sources, "y", {rows, 1536}, &plan);
  const SampledCall sampled = make_sampled_call(whole, sources, plan);
  EXPECT_LE(sampled.call.dims.at("E"), sampled.call.dims.at("M"));
  EXPECT_LT(sampled.call.dims.at("E"), 288);
}

/// One of 64 heads and 2 of 128 value columns; all 4096 tokens (model.md 6.6).
TEST(Sample, a_full_length_recurrence_is_quick) {
  const Shape keys{4096, 64, 128};
  const Sources sources{{"q", normal(DType::kBF16, keys, 1, 0.08)},
                        {"k", normal(DType::kBF16, keys, 2, 0.08)},
                        {"v", normal(DType::kBF16, keys, 3)},
                        {"g", normal(DType::kF32, keys, 4, 0.1, -1.0)},
                        {"beta", normal(DType::kF32, {4096, 64}, 5, 0.05, 0.5)}};
  const SamplePlan plan{"delta_rule", "o", 1, false, {{"Hv", {17}}, {"V", {0, 127}}}, {{"Hv", 64}, {"V", 128}}, 1.0};
  expect_quick("delta_rule", json::object(), sources, "o", keys, &plan);
  expect_quick("delta_rule", json::object(), sources, "o", keys);
}

/// 2048 selected tokens and a tail of 3 (megatron.md 4).
TEST(Sample, attention_rows_over_2051_ids_are_quick) {
  std::vector<std::int64_t> ids(4096 * 2051, -1);
  for (std::int64_t t = 0; t < 4096; ++t)
    for (std::int64_t i = 0; i <= std::min<std::int64_t>(t, 2050); ++i)
      ids[static_cast<std::size_t>(t * 2051 + i)] = t - i;
  const Sources sources{{"q", normal(DType::kBF16, {4096, 64, 576}, 1)},
                        {"c", normal(DType::kBF16, {4096, 576}, 2)},
                        {"ids", indices({4096, 2051}, ids)}};
  const SamplePlan plan{"sparse_attention", "o", 1, false, {{"T", {0, 63, 4095}}, {"H", {0, 63}}}, {}, 1.0};
  expect_quick("sparse_attention", {{"scale", 0.0625}, {"value_dim", 512}}, sources, "o", {4096, 64, 512}, &plan);
}

TEST(Sample, pool_scores_are_quick) {
  const Sources sources{{"q", normal(DType::kBF16, {4096, 32, 128}, 1)},
                        {"pooled", normal(DType::kBF16, {1024, 128}, 2)},
                        {"w", normal(DType::kF32, {4096, 32}, 3, 0.02)}};
  expect_quick("index_scores", json::object(), sources, "s", {4096, 1024});
}

}  // namespace
}  // namespace assay::harness
