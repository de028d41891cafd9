#include "reference/ops/indexer.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "cases/formats.h"
#include "reference/ops/norm.h"
#include "reference/ops/select.h"

namespace assay::reference {
namespace {

template <class T>
Array<T> array(Shape shape, const std::vector<double>& values) {
  return Array<T>(std::move(shape), std::vector<T>(values.begin(), values.end()));
}

template <class T>
std::vector<double> doubles(const Array<T>& x) {
  std::vector<double> result;
  for (const T& value : x.data) result.push_back(midpoint(value));
  return result;
}

double exact_dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> random_values(std::int64_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> result(static_cast<std::size_t>(n));
  for (double& value : result) value = rounded(bf16(), normal(random));
  return result;
}

// T49b: gates (0, ln 2, 0, 0), ape (0, 0, ln 3, 0), keys (1, 2, 3, 4).
template <class T>
KPool<T> t49b(bool with_ape) {
  Array<T> gate = array<T>({4, 1}, {0, 0, 0, 0}), ape = array<T>({4, 1}, {0, 0, 0, 0});
  gate[1] = log(T(2.0));
  ape[2] = log(T(3.0));
  return kpool_compress(array<T>({4, 1}, {1, 2, 3, 4}), gate, with_ape ? ape : Array<T>(), 4, Index());
}

TEST(KPoolCompress, T49b_pooled_key_is_18_sevenths) {
  const ContextScope real_precision(context());
  const KPool<Ball> pool = t49b<Ball>(true);
  EXPECT_TRUE(overlap(pool.pooled[0], Ball(18.0) / Ball(7.0)));
  EXPECT_LT(radius(pool.pooled[0]), 1e-35);
  for (int s = 0; s < 4; ++s)
    EXPECT_TRUE(
        overlap(pool.weights[s], Ball(std::vector<double>{1, 2, 3, 1}[static_cast<std::size_t>(s)]) / Ball(7.0)));
  EXPECT_TRUE(overlap(pool.exp_of_score_minus_max[1], Ball(2.0) / Ball(3.0)));
  EXPECT_TRUE(contains(pool.exp_of_score_minus_max[2], 1.0));
  EXPECT_NEAR(t49b<double>(true).pooled[0], 18.0 / 7.0, 1e-15);
  EXPECT_NEAR(midpoint(t49b<Real>(true).pooled[0] - Real(18) / 7), 0.0, 1e-35);
}

TEST(KPoolCompress, T49b_without_ape_2_4_and_without_scores_the_mean) {
  EXPECT_NEAR(midpoint(t49b<Ball>(false).pooled[0]), 2.4, 1e-15);
  const KPool<Ball> mean = kpool_compress(array<Ball>({4, 1}, {1, 2, 3, 4}), {}, {}, 4, Index());
  EXPECT_TRUE(contains(mean.pooled[0], 2.5));
}

TEST(KPoolCompress, T49b_one_rounding_gives_2_578125_and_three_roundings_2_5625) {
  const KPool<double> pool = t49b<double>(true);
  EXPECT_EQ(rounded(bf16(), pool.pooled[0]), 2.578125);
  double sum = 0.0;
  for (int s = 0; s < 4; ++s) sum += rounded(bf16(), rounded(bf16(), pool.weights[s]) * (s + 1));
  EXPECT_EQ(rounded(bf16(), sum), 2.5625);
}

TEST(KPoolCompress, T49b_both_roundings_lie_in_the_bound_of_their_rounding_points) {
  Context bf16_stores = context();
  bf16_stores.rounding = {.compute = 0x1p-24, .activation = bf16().unit_roundoff, .tiny = 0x1p-126};
  const ContextScope scope(bf16_stores);
  const Array<Bound> k = array<Bound>({4, 1}, {1, 2, 3, 4});
  const Array<Bound> gate = array<Bound>({4, 1}, {0, std::log(2.0), 0, 0});
  const Array<Bound> ape = array<Bound>({4, 1}, {0, 0, std::log(3.0), 0});
  const auto error = [&](PoolRounding rounding) {
    return kpool_compress(k, gate, ape, 4, Index(), rounding).pooled[0].e;
  };
  EXPECT_LT(error(PoolRounding::kNone), 1e-5);
  EXPECT_GT(error(PoolRounding::kOnce), 2.578125 - 18.0 / 7.0);
  EXPECT_LT(error(PoolRounding::kOnce), 0.0101);
  EXPECT_GT(error(PoolRounding::kHf), 18.0 / 7.0 - 2.5625);
}

TEST(KPoolCompress, T37_pool_after_a_rewind_equals_a_fresh_one) {
  const std::vector<double> ten = random_values(10 * 3, 1), other = random_values(2 * 3, 2);
  std::vector<double> rewound(ten.begin(), ten.begin() + 18);
  rewound.insert(rewound.end(), other.begin(), other.end());
  const Array<double> before = array<double>({10, 3}, ten), after = array<double>({8, 3}, rewound);
  const KPool<double> stale = kpool_compress(before, before, {}, 4, Index());
  const KPool<double> fresh = kpool_compress(after, after, {}, 4, Index());
  ASSERT_EQ(fresh.first_token.data, (std::vector<std::int64_t>{0, 4}));
  const Array<double> alone = array<double>({4, 3}, {rewound.begin() + 12, rewound.end()});
  const KPool<double> only_pool_1 = kpool_compress(alone, alone, {}, 4, Index());
  for (int c = 0; c < 3; ++c) {
    EXPECT_EQ(fresh.pooled.at(0, c), stale.pooled.at(0, c));
    EXPECT_EQ(fresh.pooled.at(1, c), only_pool_1.pooled.at(0, c));
    EXPECT_NE(fresh.pooled.at(1, c), stale.pooled.at(1, c)) << "the cached pool is stale";
  }
}

TEST(KPoolCompress, T38_pools_restart_in_each_document_and_after_left_padding) {
  const Array<double> k13({13, 1}), k8({8, 1});
  const auto starts = [](const Array<double>& k, std::vector<std::int64_t> cu) {
    const Index boundaries({static_cast<std::int64_t>(cu.size())}, cu);
    return kpool_compress(k, {}, {}, 4, boundaries).first_token.data;
  };
  using Starts = std::vector<std::int64_t>;
  EXPECT_EQ(starts(k13, {0, 6, 13}), (Starts{0, 6}));
  EXPECT_EQ(starts(k13, {0, 13}), (Starts{0, 4, 8})) << "global pools would mix the documents in {4..7}";
  EXPECT_EQ(starts(k8, {2, 8}), (Starts{2})) << "slots (P,P,A,B,C,D,E,F)";
  EXPECT_EQ(starts(k8, {0, 4, 4, 8}), (Starts{0, 4})) << "an empty document has no pool";
  // megatron.md 3.3: lengths 7, 5, 9 have the bases 0, 7, 12, 16.
  EXPECT_EQ(starts(Array<double>({21, 1}), {0, 7, 12, 21}), (Starts{0, 7, 12, 16}));
}

TEST(KPoolCompress, boundaries_that_decrease_or_miss_the_end_are_input_errors) {
  const Array<double> k({6, 1});
  EXPECT_THROW(kpool_compress(k, {}, {}, 4, Index({3}, {0, 4, 3})), InputError);
  EXPECT_THROW(kpool_compress(k, {}, {}, 4, Index({2}, {0, 5})), InputError);
  EXPECT_THROW(kpool_compress(k, {}, {}, 0, Index()), InputError);
}

TEST(HadamardFp8, T40_rotation_of_both_sides_keeps_the_dot) {
  const std::vector<double> q = {1, 2, 0, -1}, k = {3, 1, -1, 2};
  const std::vector<double> hq = doubles(hadamard_fp8(array<Ball>({1, 4}, q), false, 1e-4).y);
  const std::vector<double> hk = doubles(hadamard_fp8(array<Ball>({1, 4}, k), false, 1e-4).y);
  EXPECT_EQ(hq, (std::vector<double>{1, 0, 2, -1}));
  EXPECT_EQ(hk, (std::vector<double>{2.5, -0.5, 1.5, 2.5}));
  EXPECT_EQ(exact_dot(hq, hk), 3.0);
  EXPECT_EQ(exact_dot(q, k), 3.0);
  EXPECT_EQ(exact_dot(q, hk), -1.0) << "rotated on one side only";
  EXPECT_EQ(4.0 * exact_dot(hq, hk), 12.0) << "without n^-1/2 on both sides";
}

TEST(HadamardFp8, T41_rounding_to_bf16_comes_after_the_rotation) {
  const std::vector<double> v = {257.0 / 256, 1, -1, 1.0 / 512};
  EXPECT_EQ(doubles(hadamard_fp8(array<Ball>({4}, v), false, 1e-4).y),
            (std::vector<double>{0.50390625, -0.5, 1.5, 0.50390625}));
  std::vector<double> rounded_first;
  for (const double value : v) rounded_first.push_back(rounded(bf16(), value));
  EXPECT_EQ(doubles(hadamard_fp8(array<Ball>({4}, rounded_first), false, 1e-4).y),
            (std::vector<double>{0.5, -0.5, 1.5, 0.5}));
}

struct T41 {
  std::vector<double> x = std::vector<double>(128, 1.0), y = std::vector<double>(128, 0.0);
  T41() {
    x[0] = 1000.0;
    for (std::size_t i = 1; i < y.size(); ++i) y[i] = i % 2 == 1 ? 1.0 : -1.0;
  }
};

template <class T>
HadamardFp8<T> rotate(const std::vector<double>& row, bool quantize) {
  return hadamard_fp8(array<T>({1, 128}, row), quantize, 1e-4);
}

TEST(HadamardFp8, T41_rotation_is_not_free_in_128_dimensions) {
  const T41 t;
  EXPECT_EQ(exact_dot(t.x, t.y), 1.0);
  EXPECT_NEAR(exact_dot(doubles(rotate<Ball>(t.x, false).y), doubles(rotate<Ball>(t.y, false).y)), -1.318, 5e-4);
  const HadamardFp8<Ball> x = rotate<Ball>(t.x, true), y = rotate<Ball>(t.y, true);
  EXPECT_EQ(midpoint(x.scale[0]), 0.25);
  EXPECT_EQ(midpoint(y.scale[0]), 0.03125);
  EXPECT_EQ(exact_dot(doubles(x.y), doubles(y.y)), -6.875);
  // Without the rotation: scales 4 and 2^-8.
  double unrotated = 0.0;
  for (std::size_t i = 0; i < t.x.size(); ++i)
    unrotated += rounded(e4m3(), t.x[i] / 4) * 4 * rounded(e4m3(), t.y[i] * 256) / 256;
  EXPECT_EQ(unrotated, 1.0);
}

TEST(HadamardFp8, T41_all_scalars_agree_on_the_values) {
  const ContextScope real_precision(context());
  const T41 t;
  for (const std::vector<double>& row : {t.x, t.y, random_values(128, 3)}) {
    const HadamardFp8<Ball> certified = rotate<Ball>(row, true);
    const HadamardFp8<Bound> bound = rotate<Bound>(row, true);
    EXPECT_EQ(doubles(rotate<double>(row, true).y), doubles(certified.y));
    EXPECT_EQ(doubles(rotate<Real>(row, true).y), doubles(certified.y));
    EXPECT_EQ(rotate<Real>(row, true).codes.data, certified.codes.data);
    for (std::int64_t i = 0; i < 128; ++i) EXPECT_LE(std::abs(bound.y[i].v - midpoint(certified.y[i])), bound.y[i].e);
  }
}

TEST(HadamardFp8, scale_is_the_power_of_two_not_below_amax_over_448) {
  // megatron.md 3.4: 448 -> 1, 448.04 -> 2, 1 -> 2^-8, 0 -> 2^-22 (the floor 1e-4). One channel: H is 1.
  const auto scale = [](double amax) { return hadamard_fp8(array<double>({1, 1}, {amax}), true, 1e-4).scale[0]; };
  EXPECT_EQ(scale(448.0), 1.0);
  EXPECT_EQ(scale(450.0), 2.0) << "the bf16 number after 448";
  EXPECT_EQ(scale(-1.0), 0x1p-8);
  EXPECT_EQ(scale(0.0), 0x1p-22);
  // T58: 537.6 has scale 2.
  EXPECT_EQ(scale(537.6), 2.0);
}

TEST(HadamardFp8, T42_codes_are_ocp_and_0x80_is_minus_zero) {
  // Rotated rows (448, -2^-12, 0, 0): the second value rounds to -0 under scale 1.
  const double a = 448.0 / 2, b = -0x1p-12 / 2;
  const HadamardFp8<double> row = hadamard_fp8(array<double>({1, 4}, {a + b, a - b, a + b, a - b}), true, 1e-4);
  EXPECT_EQ(row.codes.data, (std::vector<std::int64_t>{0x7E, 0x80, 0, 0}));
  EXPECT_EQ(row.y[0], 448.0);
  EXPECT_EQ(row.y[1], 0.0);
  EXPECT_TRUE(std::signbit(row.y[1]));
  EXPECT_EQ(decode(e4m3(), 0x38), 1.0);
  // The FNUZ reading has bias 8 instead of 7: half of every value, and 0x80 is its NaN.
  const auto fnuz = [](std::uint32_t code) {
    return code == 0x80 ? std::nan("") : std::ldexp(1.0 + (code & 7) / 8.0, static_cast<int>(code >> 3) - 8);
  };
  EXPECT_EQ(fnuz(0x38), 0.5);
  EXPECT_EQ(fnuz(0x7E), 224.0);
  EXPECT_TRUE(std::isnan(fnuz(0x80)));
}

TEST(HadamardFp8, a_bound_covers_every_candidate_at_the_edge_of_a_power_of_two) {
  // Rotated rows near (448, 2^-9, 0, 0) and operands off by up to 2: the scale may be 1 or 2.
  const double a = 448.0 / 2, b = 0x1p-9 / 2, error = 2.0;
  const std::vector<double> centre = {a + b, a - b, a + b, a - b};
  Array<Bound> operands = array<Bound>({1, 4}, centre);
  for (Bound& value : operands.data) value.e = error;
  const HadamardFp8<Bound> bound = hadamard_fp8(operands, true, 1e-4);
  EXPECT_EQ(bound.scale[0].v, 1.0);
  EXPECT_EQ(bound.scale[0].e, 1.0);
  std::mt19937_64 random(9);
  std::uniform_real_distribution<double> off(-error, error);
  int other_scale = 0;
  for (int run = 0; run < 200; ++run) {
    Array<double> x = array<double>({1, 4}, centre);
    for (double& value : x.data) value += off(random);
    const HadamardFp8<double> candidate = hadamard_fp8(x, true, 1e-4);
    other_scale += candidate.scale[0] == 2.0 ? 1 : 0;
    for (std::int64_t i = 0; i < 4; ++i) {
      ASSERT_LE(std::abs(candidate.rotated[i] - bound.rotated[i].v), bound.rotated[i].e);
      ASSERT_LE(std::abs(candidate.y[i] - bound.y[i].v), bound.y[i].e);
    }
  }
  EXPECT_GT(other_scale, 0);
}

TEST(HadamardFp8, a_width_that_is_no_power_of_two_is_an_input_error) {
  EXPECT_THROW(hadamard_fp8(Array<double>({1, 96}), true, 1e-4), InputError);
}

TEST(HeadWeights, T45_head_weights_keep_their_f32_bits) {
  const double w = 1.0 + 0x1p-8;
  const Array<double> q = array<double>({1, 2, 2}, {1, 0, 0, 1}), pooled = array<double>({2, 2}, {1, 0, 0, 1});
  const Index first({2}, {0, 1}), start({1}, {0}), end({1}, {2});
  const auto choose = [&](double first_weight) {
    const Array<double> s = index_scores(q, pooled, array<double>({1, 2}, {first_weight, 1}), true, std::nullopt);
    return select_tokens(s, first, start, end, 1, 1, false);
  };
  EXPECT_EQ(choose(w).ids.data, (std::vector<std::int64_t>{0}));
  EXPECT_EQ(choose(w).margin[0], 0x1p-8);
  EXPECT_EQ(rounded(bf16(), w), 1.0);
  EXPECT_EQ(choose(rounded(bf16(), w)).margin[0], 0.0);
  EXPECT_EQ(choose(rounded(bf16(), w)).tied[0], (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(rounded(bf16(), 1.0 + 3 * 0x1p-8), 1.015625);
}

TEST(HeadWeights, are_scaled_by_both_roots) {
  const Array<Ball> x = array<Ball>({1, 2}, {3, 5}), weight = array<Ball>({4, 2}, {1, 0, 0, 1, 1, 1, -1, 0});
  const Array<Ball> w = head_weights(x, weight, 16);
  const std::vector<double> expected = {3.0 / 8, 5.0 / 8, 1.0, -3.0 / 8};  // 4^-1/2 16^-1/2 = 1/8
  for (std::int64_t h = 0; h < 4; ++h) EXPECT_TRUE(contains(w[h], expected[static_cast<std::size_t>(h)]));
  EXPECT_NEAR(head_weights(array<double>({1, 2}, {3, 5}), array<double>({4, 2}, {1, 0, 0, 1, 1, 1, -1, 0}), 128)[2],
              8.0 / std::sqrt(4 * 128.0), 1e-15);
}

TEST(IndexScores, scale_folded_into_the_weights_is_the_scale_of_the_dots) {
  const ContextScope real_precision(context());
  const Array<Ball> q = array<Ball>({3, 2, 4}, random_values(24, 5)),
                    pooled = array<Ball>({5, 4}, random_values(20, 6));
  Array<Ball> w = array<Ball>({3, 2}, random_values(6, 7));
  const Array<Ball> in_dots = index_scores(q, pooled, w, true, 0.5);
  for (Ball& value : w.data) value = value * Ball(0.5);
  const Array<Ball> in_weights = index_scores(q, pooled, w, true, std::nullopt);
  for (std::int64_t i = 0; i < in_dots.size(); ++i) EXPECT_TRUE(overlap(in_dots[i], in_weights[i]));
  const Array<Ball> no_relu = index_scores(q, pooled, w, false, std::nullopt);
  int differ = 0;
  for (std::int64_t i = 0; i < no_relu.size(); ++i) differ += overlap(no_relu[i], in_weights[i]) ? 0 : 1;
  EXPECT_GT(differ, 0);
  const Array<Real> real =
      index_scores(array<Real>({3, 2, 4}, random_values(24, 5)), array<Real>({5, 4}, random_values(20, 6)),
                   array<Real>({3, 2}, random_values(6, 7)), true, 0.5);
  for (std::int64_t i = 0; i < real.size(); ++i) EXPECT_TRUE(overlap(in_dots[i], to_ball(real[i])));
}

TEST(IndexKeys, T47_key_norm_is_a_layer_norm_with_bias_and_eps_1e_6) {
  const Array<Ball> x = array<Ball>({1, 4}, {1, 2, 3, 4}), one = array<Ball>({4}, {1, 1, 1, 1});
  const std::vector<double> expected = {-1.34164025, -0.4472134166, 0.4472134166, 1.34164025};
  const std::vector<double> rms = {0.3651, 0.7303, 1.0954, 1.4606};
  const Array<Ball> plain = layer_norm(x, one, {}, 1e-6), biased = layer_norm(x, one, one, 1e-6);
  const Array<Ball> wrong = rms_norm(x, one, 1e-6);
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_NEAR(midpoint(plain[i]), expected[at], i == 0 || i == 3 ? 5e-9 : 5e-11);
    EXPECT_NEAR(midpoint(biased[i]), expected[at] + 1.0, 5e-9);
    EXPECT_NEAR(midpoint(wrong[i]), rms[at], 5e-5);
  }
}

TEST(IndexerOps, every_declared_output_is_returned) {
  OpTable<double> table;
  add_indexer_ops(table);
  const Tensor k = Tensor::from_reals(DType::kF64, {8, 4}, random_values(32, 8));
  const OpCall call = make_call(op_named("kpool_compress"), {{"kpool", 4}}, {{"k", k}});
  EXPECT_EQ(table.at("kpool_compress")(Call<double>(call)).size(), call.spec->outputs.size());
  const OpCall rotation = make_call(op_named("hadamard_fp8"), nlohmann::json::object(), {{"x", k}});
  EXPECT_EQ(table.at("hadamard_fp8")(Call<double>(rotation)).size(), rotation.spec->outputs.size());
  const OpCall unknown = make_call(op_named("kpool_compress"), {{"kpool", 4}, {"rounding", "fp8"}}, {{"k", k}});
  EXPECT_THROW(table.at("kpool_compress")(Call<double>(unknown)), InputError);
}

}  // namespace
}  // namespace assay::reference
