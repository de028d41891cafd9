// Gradients of the delta rule in both formulations. Numbers: shared/cases/public_reports.md part 3.
#include "reference/ops/delta_rule_backward.h"

#include "reference/parallel.h"
#include "tests/ops/central_difference_kda.h"

namespace assay::reference {
namespace {

using proof::Arrays;
using proof::expect_gradients;
using proof::largest;
using proof::Numbers;
using proof::widen;

/// q, k, v, g, beta, initial state (may be empty); chunk 0 is the recurrence.
struct Problem {
  Arrays<double> inputs;
  Index cu_seqlens;
  Arrays<double> cotangents;  ///< of o and of the final state, for run

  template <class T>
  static Arrays<T> outputs(const Arrays<T>& x, const Index& cu, std::int64_t chunk) {
    DeltaRule<T> rule = chunk == 0 ? delta_rule(x[0], x[1], x[2], x[3], x[4], x[5], cu, {})
                                   : delta_rule_chunked(x[0], x[1], x[2], x[3], x[4], x[5], cu, {}, chunk);
    return {std::move(rule.o), std::move(rule.final_state)};
  }
  template <class T>
  static Arrays<T> gradients(const Arrays<T>& x, const Index& cu, std::int64_t chunk, const Arrays<T>& d) {
    DeltaRuleGradients<T> all =
        chunk == 0 ? delta_rule_backward(x[0], x[1], x[2], x[3], x[4], x[5], cu, {}, d[0], d[1])
                   : delta_rule_chunked_backward(x[0], x[1], x[2], x[3], x[4], x[5], cu, {}, chunk, d[0], d[1]);
    return {std::move(all.d_q), std::move(all.d_k),    std::move(all.d_v),
            std::move(all.d_g), std::move(all.d_beta), std::move(all.d_initial_state)};
  }
  template <class T>
  Arrays<T> run(std::int64_t chunk = 0) const {
    return gradients(widen<T>(inputs), cu_seqlens, chunk, widen<T>(cotangents));
  }
  void prove(const std::string& name, std::int64_t chunk, double widest = 1e-25) const {
    const auto forward = [&](const auto& x) { return outputs(x, cu_seqlens, chunk); };
    const auto backward = [&](const auto& x, const auto& d) { return gradients(x, cu_seqlens, chunk, d); };
    expect_gradients(name, forward, backward, inputs, widest);
  }
};

/// Random operands; keys and queries of unit length; cotangents for run.
Problem random_problem(const std::vector<std::int64_t>& boundaries, std::int64_t heads, std::int64_t value_heads,
                       std::int64_t K, std::int64_t V, bool with_state) {
  Numbers numbers;
  const std::int64_t tokens = boundaries.back(), documents = static_cast<std::int64_t>(boundaries.size()) - 1;
  Problem p;
  p.inputs = {numbers.array({tokens, heads, K}),
              numbers.array({tokens, heads, K}),
              numbers.array({tokens, value_heads, V}),
              numbers.array({tokens, value_heads, K}),
              numbers.array({tokens, value_heads}),
              with_state ? numbers.array({documents, value_heads, K, V}) : Array<double>()};
  for (int which : {0, 1}) {
    Array<double>& x = p.inputs[static_cast<std::size_t>(which)];
    for (std::int64_t row = 0; row < tokens * heads; ++row) {
      double* values = x.row(row, K);
      const double length = std::sqrt(dot(values, 1, values, 1, K));
      for (std::int64_t d = 0; d < K; ++d) values[d] /= length;
    }
  }
  for (double& g : p.inputs[3].data) g = -0.5 - 0.5 * g;
  for (double& beta : p.inputs[4].data) beta = 0.5 + 0.5 * beta;
  p.cu_seqlens = Index({documents + 1}, boundaries);
  p.cotangents = {numbers.array({tokens, value_heads, V}), numbers.array({documents, value_heads, K, V})};
  return p;
}

void gates_at_the_bound_and_near_zero(Problem& p) {
  Array<double>& g = p.inputs[3];
  for (std::int64_t i = 0; i < g.size(); ++i) g[i] = i % 3 == 0 ? -5.0 : i % 3 == 1 ? -0x1p-20 : g[i];
}

void near_collinear_keys_and_extreme_steps(Problem& p) {
  for (double& k : p.inputs[1].data) k = 0.5 + k * 0x1p-12;
  Array<double>& beta = p.inputs[4];
  for (std::int64_t i = 0; i < beta.size(); ++i) beta[i] = (i % 2 ? 1.0 : 0.0) + (i % 2 ? -1 : 1) * beta[i] * 0x1p-10;
}

TEST(DeltaRuleBackward, equals_central_differences_over_documents_with_states_and_grouped_heads) {
  Problem p = random_problem({0, 9, 9, 10, 21}, 1, 2, 3, 2, true);
  p.prove("random", 0);
  gates_at_the_bound_and_near_zero(p);
  p.prove("gates", 0);
}

TEST(DeltaRuleBackward, equals_central_differences_for_near_collinear_keys_and_extreme_steps) {
  Problem p = random_problem({0, 14}, 2, 2, 2, 3, false);
  near_collinear_keys_and_extreme_steps(p);
  p.prove("collinear", 0);
}

TEST(DeltaRuleBackward, equals_central_differences_over_70_tokens) {
  random_problem({0, 70}, 1, 1, 2, 2, false).prove("70", 0);
}

TEST(DeltaRuleChunkedBackward, equals_central_differences_with_a_partial_last_chunk) {
  Problem p = random_problem({0, 9, 9, 10, 21}, 1, 2, 3, 2, true);
  gates_at_the_bound_and_near_zero(p);
  p.prove("chunks of 4", 4, 1e-20);
  Problem collinear = random_problem({0, 14}, 2, 2, 2, 3, false);
  near_collinear_keys_and_extreme_steps(collinear);
  collinear.prove("collinear", 6, 1e-20);
}

void expect_both_forms_agree(const Problem& p, std::int64_t chunk, double widest = 1e-20) {
  const Arrays<Ball> recurrent = p.run<Ball>(), chunked = p.run<Ball>(chunk);
  for (std::size_t which = 0; which < recurrent.size(); ++which) {
    const double scale = largest(recurrent[which]);
    for (std::int64_t i = 0; i < recurrent[which].size(); ++i) {
      const Ball &a = recurrent[which][i], &b = chunked[which][i];
      EXPECT_TRUE(overlap(a, b)) << which << ", " << i << ": " << to_string(a, 40) << " and " << to_string(b, 40);
      EXPECT_LT(radius(a), 1e-25 * scale) << which << ", " << i;
      EXPECT_LT(radius(b), widest * scale) << which << ", " << i;
    }
  }
}

TEST(DeltaRuleChunkedBackward, equals_the_recurrence_over_documents) {
  for (const std::int64_t chunk : {16, 64}) {
    expect_both_forms_agree(random_problem({0, 70}, 1, 1, 4, 3, false), chunk);
    expect_both_forms_agree(random_problem({0, 17, 17, 18, 83}, 1, 2, 5, 3, true), chunk);
  }
  for (const std::int64_t tokens : {63, 64, 65})
    expect_both_forms_agree(random_problem({0, tokens}, 1, 1, 3, 4, true), 64);
}

TEST(DeltaRuleChunkedBackward, equals_the_recurrence_for_extreme_gates_keys_and_steps) {
  Problem gates = random_problem({0, 70}, 1, 1, 4, 3, true);
  gates_at_the_bound_and_near_zero(gates);
  for (const std::int64_t chunk : {16, 64}) expect_both_forms_agree(gates, chunk);
  Problem collinear = random_problem({0, 70}, 1, 1, 4, 3, true);
  near_collinear_keys_and_extreme_steps(collinear);
  expect_both_forms_agree(collinear, 16);
  // Substitution with entries of A near 1 widens a chunked ball with every row.
  expect_both_forms_agree(collinear, 64, 1e-10);
}

Problem one_channel(std::int64_t tokens, double g) {
  Problem p = random_problem({0, tokens}, 1, 1, 1, 1, false);
  for (int which : {0, 1, 2}) {
    for (double& x : p.inputs[static_cast<std::size_t>(which)].data) x = 1.0;
  }
  for (double& x : p.inputs[3].data) x = g;
  for (double& x : p.inputs[4].data) x = 0.5;
  return p;
}

TEST(DeltaRuleChunkedBackward, T17_gradients_are_finite_and_those_of_the_recurrence) {
  const Problem p = one_channel(20, -5.0);
  expect_both_forms_agree(p, 64, 1e-30);
  const Arrays<double> recurrent = p.run<double>(), chunked = p.run<double>(64);
  for (std::size_t which = 0; which < 5; ++which) {
    for (std::int64_t i = 0; i < recurrent[which].size(); ++i)
      EXPECT_NEAR(chunked[which][i], recurrent[which][i], 1e-14);
  }
  // Masking after the exponential: the derivative of a masked entry is 0 * exp(5 * distance), NaN in f32 from 18 on.
  EXPECT_FALSE(std::isnan(0.0F * std::exp(static_cast<float>(5 * 17))));
  EXPECT_TRUE(std::isnan(0.0F * std::exp(static_cast<float>(5 * 18))));
}

/// `residue` is what the scalars that speak for implementations keep of terms that cancel in the chunked form.
template <class T>
void the_first_gate_has_no_gradient(double residue = 0.0) {
  constexpr bool kSampled = std::is_same_v<T, Sampled>, kBound = std::is_same_v<T, Bound>;
  Problem p = random_problem({0, 1}, 1, 2, 4, 3, false);
  for (const double g : {-0.3, -5.0}) {
    for (double& x : p.inputs[3].data) x = g;
    for (const std::int64_t chunk : {0, 64}) {
      const Arrays<T> gradients = p.run<T>(chunk);
      for (const T& d_g : gradients[3].data) {
        EXPECT_LE(std::abs(midpoint(d_g)), kSampled && chunk ? residue : 0.0);
        EXPECT_LE(radius(d_g), chunk ? residue : kBound ? 1e-300 : 0.0);
      }
      EXPECT_GT(largest(gradients[1]), 0.1);
    }
  }
}

TEST(DeltaRuleBackward, T24_the_first_gate_has_exactly_no_gradient_in_every_scalar) {
  the_first_gate_has_no_gradient<double>();
  the_first_gate_has_no_gradient<Real>();
  the_first_gate_has_no_gradient<Ball>();
  the_first_gate_has_no_gradient<Bound>(0x1p-48);
  the_first_gate_has_no_gradient<Sampled>(0x1p-36);  // magnified by 2^12
}

TEST(DeltaRuleBackward, T27_packed_documents_equal_each_document_alone) {
  for (const std::vector<std::int64_t>& boundaries :
       {std::vector<std::int64_t>{0, 5, 12}, {0, 64, 79}, {0, 1, 2}, {0, 0, 3, 3}}) {
    const Problem p = random_problem(boundaries, 1, 2, 4, 3, true);
    for (const std::int64_t chunk : {0, 64}) {
      const Arrays<double> packed = p.run<double>(chunk);
      for (std::size_t s = 0; s + 1 < boundaries.size(); ++s) {
        const std::int64_t begin = boundaries[s], end = boundaries[s + 1];
        const auto cut = [](const Array<double>& x, std::int64_t from, std::int64_t to) {
          Shape shape = x.shape;
          const std::int64_t width = x.size() / shape[0];
          shape[0] = to - from;
          return Array<double>(shape, std::vector<double>(x.row(from, width), x.row(to, width)));
        };
        const auto document = static_cast<std::int64_t>(s);
        Problem alone;
        alone.cu_seqlens = Index({2}, {0, end - begin});
        for (int which = 0; which < 5; ++which)
          alone.inputs.push_back(cut(p.inputs[static_cast<std::size_t>(which)], begin, end));
        alone.inputs.push_back(cut(p.inputs[5], document, document + 1));
        alone.cotangents = {cut(p.cotangents[0], begin, end), cut(p.cotangents[1], document, document + 1)};
        const Arrays<double> gradients = alone.run<double>(chunk);
        for (std::size_t which = 0; which < 5; ++which)
          EXPECT_EQ(gradients[which].data, cut(packed[which], begin, end).data) << which;
        EXPECT_EQ(gradients[5].data, cut(packed[5], document, document + 1).data);
      }
    }
  }
}

TEST(DeltaRuleBackward, T26_a_zero_key_gives_finite_gradients) {
  Problem p = random_problem({0, 6}, 1, 1, 3, 2, true);
  for (std::int64_t d = 0; d < 3; ++d) p.inputs[1].at(2, 0, d) = 0.0;
  p.prove("zero key", 0);
  for (const std::int64_t chunk : {0, 4}) {
    for (const Array<double>& gradient : p.run<double>(chunk)) {
      for (const double x : gradient.data) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

TEST(DeltaRuleBackward, either_cotangent_may_be_absent) {
  Problem p = random_problem({0, 4, 7}, 1, 1, 3, 2, true);
  const Arrays<double> both = p.run<double>();
  Problem o_only = p, state_only = p;
  o_only.cotangents[1] = Array<double>();
  state_only.cotangents[0] = Array<double>();
  for (const std::int64_t chunk : {0, 4}) {
    const Arrays<double> a = o_only.run<double>(chunk), b = state_only.run<double>(chunk);
    for (std::size_t which = 0; which < both.size(); ++which) {
      for (std::int64_t i = 0; i < both[which].size(); ++i)
        EXPECT_NEAR(a[which][i] + b[which][i], both[which][i], 1e-14);
    }
    EXPECT_EQ(largest(b[0]), 0.0);  // the final state does not see the queries
  }
}

TEST(DeltaRuleBackward, balls_stay_narrow_and_bounds_useful_over_long_documents) {
  // Radii carried per element would grow by a factor of about 3 a token here.
  Problem p = random_problem({0, 100}, 1, 1, 24, 4, true);
  for (double& g : p.inputs[3].data) g = -0x1p-10;
  for (double& beta : p.inputs[4].data) beta = 0.99;
  const Arrays<Ball> balls = p.run<Ball>();
  Context low = context();
  low.rounding = {0x1p-24, 0x1p-24, 0x1p-126};
  Arrays<Bound> bounds;
  {
    const ContextScope scope(low);
    bounds = p.run<Bound>();
  }
  for (std::size_t which = 0; which < balls.size(); ++which) {
    const double scale = largest(balls[which]);
    for (std::int64_t i = 0; i < balls[which].size(); ++i) {
      EXPECT_LT(radius(balls[which][i]), 1e-30 * scale);
      EXPECT_LT(bounds[which][i].e, 0.1 * scale);
    }
  }
}

TEST(DeltaRuleBackward, does_not_depend_on_the_number_of_threads) {
  const Problem p = random_problem({0, 5, 12, 80}, 2, 4, 4, 3, true);
  const int before = jobs();
  for (const std::int64_t chunk : {0, 16}) {
    set_jobs(1);
    const Arrays<double> one = p.run<double>(chunk);
    set_jobs(3);
    const Arrays<double> three = p.run<double>(chunk);
    for (std::size_t which = 0; which < one.size(); ++which) EXPECT_EQ(one[which].data, three[which].data);
  }
  set_jobs(before);
}

TEST(DeltaRuleBackward, rejects_cotangents_of_another_shape_and_chunks_below_one) {
  Problem p = random_problem({0, 4}, 1, 1, 3, 2, false);
  EXPECT_THROW(p.run<double>(-1), InputError);
  p.cotangents[0] = Array<double>({4, 1, 3});
  EXPECT_THROW(p.run<double>(), InputError);
  EXPECT_THROW(p.run<double>(4), InputError);
}

}  // namespace
}  // namespace assay::reference
