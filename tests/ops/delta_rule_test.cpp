// The delta rule in both formulations and its enclosures. Numbers: shared/cases/public_reports.md part 3.
#include "reference/ops/delta_rule.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "cases/formats.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// Operands as exact doubles; run<T> widens them.
struct Problem {
  std::int64_t tokens = 1, heads = 1, value_heads = 1, K = 1, V = 1;
  std::vector<double> q, k, v, g, beta, initial;
  std::vector<std::int64_t> boundaries;
  std::optional<double> scale;

  template <class T>
  DeltaRule<T> run(std::int64_t chunk = 0) const {
    const auto array = [](Shape shape, const std::vector<double>& x) {
      return Array<T>(std::move(shape), std::vector<T>(x.begin(), x.end()));
    };
    const auto documents = static_cast<std::int64_t>(boundaries.empty() ? 1 : boundaries.size() - 1);
    const Array<T> a_q = array({tokens, heads, K}, q), a_k = array({tokens, heads, K}, k),
                   a_v = array({tokens, value_heads, V}, v), a_g = array({tokens, value_heads, K}, g),
                   a_beta = array({tokens, value_heads}, beta),
                   state = initial.empty() ? Array<T>() : array({documents, value_heads, K, V}, initial);
    const Index cu = boundaries.empty() ? Index() : Index({documents + 1}, boundaries);
    return chunk == 0 ? delta_rule(a_q, a_k, a_v, a_g, a_beta, state, cu, scale)
                      : delta_rule_chunked(a_q, a_k, a_v, a_g, a_beta, state, cu, scale, chunk);
  }
  /// Tokens [begin, end) alone, with the initial state of document `document`.
  Problem part(std::int64_t begin, std::int64_t end, std::int64_t document) const {
    const auto cut = [&](const std::vector<double>& x) {
      const auto width = static_cast<std::int64_t>(x.size()) / tokens;
      return std::vector<double>(x.begin() + begin * width, x.begin() + end * width);
    };
    const std::int64_t state = value_heads * K * V;
    Problem p{end - begin, heads, value_heads, K, V, cut(q), cut(k), cut(v), cut(g), cut(beta), {}, {}, scale};
    if (!initial.empty())
      p.initial.assign(initial.begin() + document * state, initial.begin() + (document + 1) * state);
    return p;
  }
};

class Numbers {
 public:
  /// A multiple of 2^-20 in [-1, 1).
  double next() { return static_cast<double>(static_cast<std::int32_t>(generator_() >> 11) - (1 << 20)) * 0x1p-20; }
  std::vector<double> many(std::int64_t n) {
    std::vector<double> x(static_cast<std::size_t>(n));
    for (double& value : x) value = next();
    return x;
  }

 private:
  std::mt19937 generator_{20240817};
};

/// Random operands; keys and queries of about unit length.
Problem random_problem(std::int64_t tokens, std::int64_t heads, std::int64_t value_heads, std::int64_t K,
                       std::int64_t V) {
  Numbers numbers;
  Problem p{tokens, heads, value_heads, K, V, {}, {}, {}, {}, {}, {}, {}, {}};
  p.q = numbers.many(tokens * heads * K);
  p.k = numbers.many(tokens * heads * K);
  p.v = numbers.many(tokens * value_heads * V);
  for (std::vector<double>* x : {&p.q, &p.k}) {
    for (std::int64_t row = 0; row < tokens * heads; ++row) {
      double* values = x->data() + row * K;
      const double length = std::sqrt(dot(values, 1, values, 1, K));
      for (std::int64_t d = 0; d < K; ++d) values[d] /= length;
    }
  }
  for (const double x : numbers.many(tokens * value_heads * K)) p.g.push_back(-0.5 - 0.5 * x);
  for (const double x : numbers.many(tokens * value_heads)) p.beta.push_back(0.5 + 0.5 * x);
  return p;
}

template <class T>
double largest(const Array<T>& x) {
  double result = 0;
  for (const T& value : x.data) result = std::max(result, std::abs(midpoint(value)));
  return result;
}

/// `widest` is for b, the chunked form.
void expect_overlap(const Array<Ball>& a, const Array<Ball>& b, double widest) {
  ASSERT_EQ(a.shape, b.shape);
  for (std::int64_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(overlap(a[i], b[i])) << i << ": " << to_string(a[i], 40) << " and " << to_string(b[i], 40);
    EXPECT_LT(radius(a[i]), 1e-35);
    EXPECT_LT(radius(b[i]), widest);
  }
}

void expect_both_forms_agree(const Problem& p, std::int64_t chunk, double widest = 1e-30) {
  const DeltaRule<Ball> recurrent = p.run<Ball>(), chunked = p.run<Ball>(chunk);
  expect_overlap(recurrent.o, chunked.o, widest);
  expect_overlap(recurrent.final_state, chunked.final_state, widest);
}

Problem one_channel(std::int64_t tokens, double g) {
  const std::vector<double> ones(static_cast<std::size_t>(tokens), 1.0);
  Problem p{tokens, 1, 1, 1, 1, ones, ones, ones, {}, {}, {}, {}, {}};
  p.g.assign(ones.size(), g);
  p.beta.assign(ones.size(), 0.5);
  return p;
}

TEST(DeltaRuleChunked, T17_exponents_above_the_diagonal_are_never_formed) {
  expect_both_forms_agree(one_channel(20, -5.0), 64);
  // What masking after the exponential would evaluate in f32: 5 per token of distance overflows from distance 18 on.
  EXPECT_TRUE(std::isfinite(std::exp(static_cast<float>(5 * 17))));
  EXPECT_TRUE(std::isinf(std::exp(static_cast<float>(5 * 18))));
}

TEST(DeltaRule, T21_slow_decay_is_not_narrowed) {
  Problem p = one_channel(4096, 0.0);
  p.initial = {1.0};
  p.beta.assign(p.beta.size(), 0.0);
  const auto final_state = [&](std::int64_t tokens, double alpha) {
    p.g.assign(p.g.size(), std::log(alpha));
    return midpoint(p.part(0, tokens, 0).run<Ball>().final_state[0]);
  };
  EXPECT_NEAR(final_state(4096, 0.99992), 0.72058413, 5e-9);
  EXPECT_NEAR(final_state(64, 0.997), 0.82506874, 5e-9);
  EXPECT_EQ(rounded(bf16(), 0.99992), 1.0);
  EXPECT_NEAR(final_state(64, rounded(bf16(), 0.997)), 0.77841961, 5e-9);
}

TEST(DeltaRule, T24_the_first_output_does_not_depend_on_the_gate) {
  Problem p = random_problem(1, 1, 1, 4, 3);
  p.scale = 0.5;
  const DeltaRule<double> rule = p.run<double>();
  for (int e = 0; e < 3; ++e)
    EXPECT_NEAR(rule.o[e], 0.5 * dot(p.q.data(), 1, p.k.data(), 1, 4) * p.beta[0] * p.v[static_cast<std::size_t>(e)],
                1e-16);
  p.g.assign(4, -5.0);
  EXPECT_EQ(p.run<double>().o.data, rule.o.data);
  EXPECT_NEAR(p.run<double>(64).o[0], rule.o[0], 1e-16);
}

TEST(DeltaRuleChunked, T25_a_partial_chunk_ends_at_its_last_row) {
  expect_both_forms_agree(one_channel(70, -5.0), 64);
  // Row 5 of the second chunk has G = -30. Against a padded row 63 read as 0 the decay would be a growth.
  EXPECT_NEAR(std::exp(0.0 - 6 * -5.0), 1.07e13, 5e10);
}

TEST(DeltaRule, T27_packed_documents_equal_each_document_alone) {
  for (const std::vector<std::int64_t>& boundaries :
       {std::vector<std::int64_t>{0, 5, 12}, {0, 64, 79}, {0, 1, 2}, {0, 0, 3, 3}}) {
    Problem p = random_problem(boundaries.back(), 1, 2, 4, 3);
    p.boundaries = boundaries;
    const auto documents = static_cast<std::int64_t>(boundaries.size() - 1);
    p.initial = Numbers().many(documents * 2 * 4 * 3);
    for (const std::int64_t chunk : {0, 64}) {
      const DeltaRule<double> packed = p.run<double>(chunk);
      for (std::int64_t s = 0; s < documents; ++s) {
        const std::int64_t begin = boundaries[static_cast<std::size_t>(s)],
                           end = boundaries[static_cast<std::size_t>(s) + 1];
        const DeltaRule<double> alone = p.part(begin, end, s).run<double>(chunk);
        for (std::int64_t i = 0; i < alone.o.size(); ++i) EXPECT_EQ(alone.o[i], packed.o[begin * 2 * 3 + i]);
        for (std::int64_t i = 0; i < 24; ++i) EXPECT_EQ(alone.final_state[i], packed.final_state[s * 24 + i]);
      }
    }
  }
}

TEST(DeltaRule, T30_state_rows_are_key_channels) {
  const Problem p{1, 1, 1, 2, 3, {1, 0}, {0, 1}, {0, 0, 0}, {0, 0}, {0}, {1, 2, 3, 4, 5, 6}, {}, {}};
  for (const std::int64_t chunk : {0, 64}) {
    const DeltaRule<Ball> rule = p.run<Ball>(chunk);
    for (int e = 0; e < 3; ++e) {
      EXPECT_NEAR(midpoint(rule.o[e]), (e + 1) / std::sqrt(2.0), 1e-15);
      const double as_value_major = p.initial[static_cast<std::size_t>(2 * e)] / std::sqrt(2.0);
      EXPECT_NEAR(as_value_major, (2 * e + 1) / std::sqrt(2.0), 1e-15);  // misread: 1, 3, 5
      if (e > 0) {
        EXPECT_GT(std::abs(midpoint(rule.o[e]) - as_value_major), 0.7);
      }
    }
  }
}

TEST(DeltaRule, T31_tiny_recurrence) {
  const double half = std::log(0.5);
  const Problem p{2, 1, 1, 2, 1, {1, 0, 1, 1}, {1, 0, 0.6, 0.8}, {1, 2}, {0, half, half, 0}, {0.5, 0.5}, {}, {}, {}};
  for (const std::int64_t chunk : {0, 1, 2, 64}) {
    const DeltaRule<Ball> rule = p.run<Ball>(chunk);
    EXPECT_NEAR(midpoint(rule.o[0]), 0.35355339059327, 5e-15);
    EXPECT_NEAR(midpoint(rule.o[1]), 1.0924799769332, 5e-14);
    EXPECT_NEAR(midpoint(rule.final_state[0]), 0.805, 1e-15);
    EXPECT_NEAR(midpoint(rule.final_state[1]), 0.74, 1e-15);
  }
  // The prediction from the state before the decay: 2 - 0.6 * 0.5.
  const double delta = 0.5 * (2 - 0.6 * 0.5);
  EXPECT_NEAR((0.25 + 0.6 * delta + 0.8 * delta) / std::sqrt(2.0), 1.0182337649086, 5e-14);
  // The diagonal counted twice doubles o1, which is scale * (q.k) * beta * v.
  EXPECT_GT(2 * 0.35355339059327, 0.7);
}

TEST(DeltaRuleChunked, T31_equals_the_recurrence_around_a_chunk_boundary) {
  for (const std::int64_t tokens : {63, 64, 65}) expect_both_forms_agree(random_problem(tokens, 2, 2, 8, 5), 64);
}

TEST(DeltaRuleChunked, equals_the_recurrence_over_documents_with_states_and_grouped_heads) {
  Problem p = random_problem(83, 2, 4, 6, 3);
  p.boundaries = {0, 17, 17, 49, 83};
  p.initial = Numbers().many(4 * 4 * 6 * 3);
  expect_both_forms_agree(p, 16);
  expect_both_forms_agree(p, 64);
}

TEST(DeltaRuleChunked, equals_the_recurrence_for_near_collinear_keys_and_beta_near_one) {
  Problem p = random_problem(70, 1, 1, 4, 4);
  for (std::size_t i = 0; i < p.k.size(); ++i) p.k[i] = 0.5 + p.k[i] * 0x1p-12;
  for (double& b : p.beta) b = 1 - (1 - b) * 0x1p-10;
  for (double& g : p.g) g *= 0x1p-10;
  expect_both_forms_agree(p, 16);
  // Substitution with entries of A near 1 doubles a chunked ball with every row: 2^64 at most.
  expect_both_forms_agree(p, 64, 1e-15);
}

TEST(DeltaRuleChunked, equals_the_recurrence_for_gates_at_the_bound_and_near_zero) {
  Problem p = random_problem(70, 1, 1, 4, 4);
  for (std::size_t i = 0; i < p.g.size(); ++i) p.g[i] = i % 3 == 0 ? -5.0 : i % 3 == 1 ? -1e-6 : 0.0;
  expect_both_forms_agree(p, 16);
  expect_both_forms_agree(p, 64);
}

TEST(DeltaRule, value_heads_share_the_key_head_of_their_group) {
  const Problem p = random_problem(9, 2, 4, 4, 3);
  const DeltaRule<double> grouped = p.run<double>();
  for (std::int64_t h = 0; h < 4; ++h) {
    Problem single{9, 1, 1, 4, 3, {}, {}, {}, {}, {}, {}, {}, {}};
    for (std::int64_t t = 0; t < 9; ++t) {
      const auto take = [](std::vector<double>& to, const std::vector<double>& from, std::int64_t row, std::int64_t n) {
        to.insert(to.end(), from.begin() + row * n, from.begin() + (row + 1) * n);
      };
      take(single.q, p.q, t * 2 + h / 2, 4);
      take(single.k, p.k, t * 2 + h / 2, 4);
      take(single.v, p.v, t * 4 + h, 3);
      take(single.g, p.g, t * 4 + h, 4);
      take(single.beta, p.beta, t * 4 + h, 1);
    }
    const DeltaRule<double> rule = single.run<double>();
    for (std::int64_t t = 0; t < 9; ++t) {
      for (std::int64_t e = 0; e < 3; ++e) EXPECT_EQ(rule.o.at(t, 0, e), grouped.o.at(t, h, e));
    }
  }
}

/// 300 tokens of slow decay and almost full overwriting of random directions.
Problem long_memory() {
  Problem p = random_problem(300, 1, 1, 16, 4);
  p.g.assign(p.g.size(), -0.001);
  p.beta.assign(p.beta.size(), 0.99);
  return p;
}

TEST(DeltaRuleBall, contains_the_256_bit_value_and_stays_narrow_over_300_tokens) {
  const Problem p = long_memory();
  const DeltaRule<Ball> ball = p.run<Ball>();
  Context precise = context();
  precise.bits = 256;
  const ContextScope scope(precise);
  const DeltaRule<Real> real = p.run<Real>();
  const auto check = [](const Array<Ball>& balls, const Array<Real>& values) {
    const double scale = largest(balls);
    for (std::int64_t i = 0; i < balls.size(); ++i) {
      const Ball value = to_ball(values[i]);
      EXPECT_TRUE(arb_contains(balls[i].data(), value.data())) << i;
      EXPECT_LT(radius(balls[i]), 1e-25 * scale);
      EXPECT_GT(radius(balls[i]), 0.0);
    }
  };
  check(ball.o, real.o);
  check(ball.final_state, real.final_state);
}

TEST(DeltaRuleBall, contains_the_results_of_operands_anywhere_in_their_balls) {
  const Problem centre = random_problem(40, 1, 1, 6, 3);
  const double width = 0x1p-30;
  const auto wide = [&](Shape shape, const std::vector<double>& x) {
    Array<Ball> array(std::move(shape), std::vector<Ball>(x.begin(), x.end()));
    for (Ball& ball : array.data) mag_set_d(arb_radref(ball.data()), width);
    return array;
  };
  Problem start = centre;
  start.initial = Numbers().many(18);
  const DeltaRule<Ball> ball =
      delta_rule(wide({40, 1, 6}, start.q), wide({40, 1, 6}, start.k), wide({40, 1, 3}, start.v),
                 wide({40, 1, 6}, start.g), wide({40, 1}, start.beta), wide({1, 1, 6, 3}, start.initial), Index(), {});
  Numbers numbers;
  for (int trial = 0; trial < 20; ++trial) {
    Problem moved = start;
    for (std::vector<double>* x : {&moved.q, &moved.k, &moved.v, &moved.g, &moved.beta, &moved.initial}) {
      for (double& value : *x) value += numbers.next() < 0 ? -width : width;
    }
    const DeltaRule<Ball> rule = moved.run<Ball>();
    for (std::int64_t i = 0; i < rule.o.size(); ++i) EXPECT_TRUE(arb_contains(ball.o[i].data(), rule.o[i].data()));
    for (std::int64_t i = 0; i < 18; ++i)
      EXPECT_TRUE(arb_contains(ball.final_state[i].data(), rule.final_state[i].data()));
  }
  EXPECT_LT(radius(ball.final_state[0]), 200 * width);
}

/// The recurrence in f32, one rounding per operation, sums in the order given; beta goes into k or into the difference.
DeltaRule<double> in_f32(const Problem& p, bool backwards, bool beta_into_k) {
  const std::int64_t K = p.K, V = p.V;
  DeltaRule<double> result{Array<double>({p.tokens, 1, V}), Array<double>({1, 1, K, V})};
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(K)));
  std::vector<float> state(static_cast<std::size_t>(K * V));
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    for (std::int64_t e = 0; e < V; ++e) {
      float* s = state.data() + e * K;
      const auto at = [&](const std::vector<double>& x, std::int64_t d) {
        return static_cast<float>(x[static_cast<std::size_t>(t * K + d)]);
      };
      const auto times = [&](const auto& vector) {
        float sum = 0;
        for (std::int64_t i = 0; i < K; ++i) {
          const std::int64_t d = backwards ? K - 1 - i : i;
          const float product = vector(d) * s[d];
          sum = sum + product;
        }
        return sum;
      };
      for (std::int64_t d = 0; d < K; ++d) s[d] = s[d] * std::exp(at(p.g, d));
      const float beta = static_cast<float>(p.beta[static_cast<std::size_t>(t)]);
      const float memory = times([&](std::int64_t d) { return at(p.k, d); });
      const float difference = static_cast<float>(p.v[static_cast<std::size_t>(t * V + e)]) - memory;
      for (std::int64_t d = 0; d < K; ++d) {
        const float left = beta_into_k ? beta * at(p.k, d) : at(p.k, d);
        const float right = beta_into_k ? difference : beta * difference;
        const float update = left * right;
        s[d] = s[d] + update;
      }
      result.o.at(t, 0, e) = scale * times([&](std::int64_t d) { return at(p.q, d); });
    }
  }
  for (std::int64_t e = 0; e < V; ++e) {
    for (std::int64_t d = 0; d < K; ++d) result.final_state[d * V + e] = static_cast<double>(state[e * K + d]);
  }
  return result;
}

TEST(DeltaRuleBound, holds_for_f32_recurrences_and_is_not_idle) {
  Problem p = long_memory();
  for (std::vector<double>* x : {&p.q, &p.k, &p.v, &p.g, &p.beta}) {
    for (double& value : *x) value = static_cast<double>(static_cast<float>(value));
  }
  const DeltaRule<Ball> truth = p.run<Ball>();
  Context f32;
  f32.rounding = {0x1p-24, 0x1p-24, 0x1p-126};
  const ContextScope scope(f32);
  const DeltaRule<Bound> bound = p.run<Bound>();
  for (const bool backwards : {false, true}) {
    for (const bool beta_into_k : {false, true}) {
      const DeltaRule<double> rule = in_f32(p, backwards, beta_into_k);
      double share = 0;
      const auto check = [&](const Array<double>& x, const Array<Bound>& limit, const Array<Ball>& value) {
        for (std::int64_t i = 0; i < x.size(); ++i)
          share = std::max(share, std::abs(x[i] - midpoint(value[i])) / limit[i].e);
      };
      check(rule.o, bound.o, truth.o);
      check(rule.final_state, bound.final_state, truth.final_state);
      EXPECT_LE(share, 1.0);
      EXPECT_GT(share, 1e-3);
    }
  }
}

TEST(DeltaRuleBound, grows_with_the_sum_of_local_errors_only) {
  Context f32;
  f32.rounding = {0x1p-24, 0x1p-24, 0x1p-126};
  const ContextScope scope(f32);
  const DeltaRule<Bound> bound = long_memory().run<Bound>();
  double widest = 0;
  for (const Bound& x : bound.final_state.data) widest = std::max(widest, x.e);
  EXPECT_LT(widest, 300 * 100 * 0x1p-24 * largest(bound.final_state));
}

TEST(DeltaRule, every_scalar_has_the_same_values) {
  Problem p = random_problem(20, 1, 2, 5, 3);
  for (const std::int64_t chunk : {0, 16}) {
    const DeltaRule<Ball> truth = p.run<Ball>(chunk);
    const DeltaRule<double> fast = p.run<double>(chunk);
    const DeltaRule<Real> precise = p.run<Real>(chunk);
    const DeltaRule<Bound> permitted = p.run<Bound>(chunk);
    for (std::int64_t i = 0; i < truth.o.size(); ++i) {
      EXPECT_NEAR(fast.o[i], midpoint(truth.o[i]), 1e-14);
      EXPECT_NEAR(midpoint(precise.o[i]), midpoint(truth.o[i]), 1e-16);
      EXPECT_NEAR(permitted.o[i].v, midpoint(truth.o[i]), 1e-14);
    }
  }
}

TEST(DeltaRule, does_not_depend_on_the_number_of_threads) {
  Problem p = random_problem(30, 2, 4, 4, 3);
  p.boundaries = {0, 7, 30};
  set_jobs(1);
  const DeltaRule<double> alone = p.run<double>(), alone_chunked = p.run<double>(16);
  set_jobs(3);
  EXPECT_EQ(p.run<double>().o.data, alone.o.data);
  EXPECT_EQ(p.run<double>(16).final_state.data, alone_chunked.final_state.data);
}

std::string message_of(const Problem& p, std::int64_t chunk = 0) {
  try {
    p.run<double>(chunk);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(DeltaRule, bad_boundaries_states_heads_and_chunks_are_named) {
  Problem p = random_problem(4, 2, 2, 2, 2);
  p.boundaries = {0, 3, 2, 4};
  EXPECT_EQ(message_of(p), "cu_seqlens: entry 2 is 2 after 3; entries never decrease");
  p.boundaries = {1, 4};
  EXPECT_EQ(message_of(p), "cu_seqlens: entry 0 is 1; the first entry is 0");
  p.boundaries = {0, 3};
  EXPECT_EQ(message_of(p), "cu_seqlens: entry 1 is 3; the last entry is the number of tokens, 4");
  p.boundaries = {};
  EXPECT_EQ(message_of(p, -1), "delta_rule_chunked chunk: -1; at least 1");
  const Array<double> wrong_states({2, 2, 2, 2});
  EXPECT_THROW(delta_rule_sizes({4, 2, 2}, {4, 2, 2}, wrong_states.shape, Index()), InputError);
  EXPECT_THROW(delta_rule_sizes({4, 2, 2}, {4, 3, 2}, {0}, Index()), InputError);
  EXPECT_EQ(delta_rule_sizes({4, 2, 2}, {4, 6, 2}, {0}, Index()).group, 3);
}

}  // namespace
}  // namespace assay::reference
