// Gradients around the delta rule and of the fused op. Numbers: shared/cases/public_reports.md part 3.
#include "reference/ops/kda_backward.h"

#include "reference/ops/delta_rule_backward.h"
#include "reference/ops/kda.h"
#include "reference/ops/norm.h"
#include "reference/ops/norm_backward.h"
#include "tests/ops/central_difference_kda.h"

namespace assay::reference {
namespace {

using proof::Arrays;
using proof::expect_gradients;
using proof::Numbers;
using proof::widen;

Array<double> times(double factor, Array<double> x) {
  for (double& value : x.data) value *= factor;
  return x;
}

TEST(KdaConvBackward, equals_central_differences) {
  Numbers numbers;
  const Index boundaries({5}, {0, 2, 2, 3, 9});
  for (const Index& cu : {boundaries, Index()}) {
    const auto forward = [&](const auto& x) { return std::vector{kda_conv(x[0], x[1], cu, x[2])}; };
    const auto backward = [&](const auto& x, const auto& d) {
      auto gradients = kda_conv_backward(x[0], x[1], cu, x[2], d[0]);
      return std::vector{gradients.d_u, gradients.d_weight, gradients.d_initial};
    };
    const Array<double> u = times(4, numbers.array({9, 3}));
    expect_gradients("initial", forward, backward, {u, numbers.array({3, 4}), numbers.array({3, 3})});
    expect_gradients("no initial", forward, backward, {u, numbers.array({3, 4}), {}});
    expect_gradients("two taps", forward, backward, {u, numbers.array({3, 2}), numbers.array({1, 3})});
  }
}

TEST(KdaConvBackward, an_empty_first_document_takes_nothing_from_the_initial_rows) {
  Numbers numbers;
  const auto gradients = kda_conv_backward(numbers.array({4, 2}), numbers.array({2, 4}), Index({3}, {0, 0, 4}),
                                           numbers.array({3, 2}), numbers.array({4, 2}));
  EXPECT_EQ(proof::largest(gradients.d_initial), 0.0);
}

TEST(KdaConvBackward, T27_documents_do_not_touch_each_other) {
  Numbers numbers;
  const Array<double> u = numbers.array({12, 3}), weight = numbers.array({3, 4}), dy = numbers.array({12, 3});
  const Index boundaries({4}, {0, 5, 6, 12});
  const Array<double> packed = kda_conv_backward(u, weight, boundaries, Array<double>(), dy).d_u;
  for (std::int64_t s = 0; s < 3; ++s) {
    const std::int64_t begin = boundaries[s], end = boundaries[s + 1];
    const auto cut = [&](const Array<double>& x) {
      return Array<double>({end - begin, 3}, std::vector<double>(x.row(begin, 3), x.row(end, 3)));
    };
    EXPECT_EQ(kda_conv_backward(cut(u), weight, Index(), Array<double>(), cut(dy)).d_u.data, cut(packed).data);
  }
}

TEST(KdaGateBackward, equals_central_differences) {
  Numbers numbers;
  const Array<double> f = times(6, numbers.array({7, 2, 3})), rate = times(2, numbers.array({2}));
  for (const std::optional<double> bound : {std::optional<double>(), std::optional<double>(-5.0)}) {
    const auto forward = [&](const auto& x) { return std::vector{kda_gate(x[0], x[1], x[2], bound)}; };
    const auto backward = [&](const auto& x, const auto& d) {
      auto gradients = kda_gate_backward(x[0], x[1], x[2], bound, d[0]);
      return std::vector{gradients.d_f, gradients.d_A_log, gradients.d_dt_bias};
    };
    expect_gradients("bias", forward, backward, {f, rate, numbers.array({6})});
    expect_gradients("no bias", forward, backward, {f, rate, {}});
  }
}

TEST(KdaGateBackward, the_bias_sums_what_was_rounded_and_the_rate_does_not) {
  Context low = context();
  low.rounding = {0x1p-24, bf16().unit_roundoff, 0x1p-126};
  const ContextScope scope(low);
  Numbers numbers;
  const auto gradients =
      kda_gate_backward(widen<Bound>(numbers.array({64, 1, 1})), widen<Bound>(numbers.array({1})),
                        widen<Bound>(numbers.array({1})), -5.0, widen<Bound>(numbers.array({64, 1, 1})));
  double magnitude = 0;
  for (const Bound& x : gradients.d_f.data) magnitude += std::abs(x.v);
  EXPECT_GT(gradients.d_dt_bias[0].e, 0x1p-9 * magnitude);
  EXPECT_LT(gradients.d_A_log[0].e, 0x1p-15 * magnitude);
}

TEST(BetaBackward, equals_central_differences) {
  Numbers numbers;
  const auto forward = [](const auto& x) { return std::vector{beta(x[0])}; };
  const auto backward = [](const auto& x, const auto& d) { return std::vector{beta_backward(x[0], d[0])}; };
  expect_gradients("beta", forward, backward, {times(8, numbers.array({5, 2}))});
}

template <class T>
KdaAttention<T> attention_inputs(const Arrays<T>& x, const Index& cu, std::optional<double> bound) {
  return {x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], cu, bound, {}, 1e-6};
}

template <class T>
Arrays<T> attention_gradients(const Arrays<T>& x, const Index& cu, std::optional<double> bound, const Arrays<T>& d) {
  KdaAttentionGradients<T> all = kda_attention_backward(attention_inputs(x, cu, bound), {d[0], d[1], d[2], d[3]});
  return {all.d_q, all.d_k, all.d_v, all.d_gate, all.d_A_log, all.d_dt_bias, all.d_beta_logits, all.d_initial_state};
}

template <class T>
Arrays<T> attention_outputs(const Arrays<T>& x, const Index& cu, std::optional<double> bound) {
  Array<T> g = kda_gate(x[3], x[4], x[5], bound), step = beta(x[6]);
  DeltaRule<T> rule = delta_rule(l2norm(x[0], 1e-6), l2norm(x[1], 1e-6), x[2], g, step, x[7], cu, {});
  return {rule.o, rule.final_state, g, step};
}

TEST(KdaAttentionBackward, stored_intermediates_are_used_instead_of_computed) {
  Numbers numbers;
  KdaAttention<double> in{};
  in.q = numbers.array({5, 2, 3});
  in.k = numbers.array({5, 2, 3});
  in.v = numbers.array({5, 2, 2});
  in.gate = numbers.array({5, 2, 3});
  in.A_log = numbers.array({2});
  in.beta_logits = numbers.array({5, 2});
  in.lower_bound = -5.0;
  const KdaAttentionCotangents<double> d{numbers.array({5, 2, 2}), {}, {}, {}};
  const KdaAttentionGradients<double> computed = kda_attention_backward(in, d);
  in.stored_q = l2norm(in.q, in.l2norm_eps);
  in.stored_k = l2norm(in.k, in.l2norm_eps);
  in.stored_g = kda_gate(in.gate, in.A_log, in.dt_bias, in.lower_bound);
  in.stored_beta = beta(in.beta_logits);
  const KdaAttentionGradients<double> same = kda_attention_backward(in, d);
  EXPECT_EQ(same.d_q.data, computed.d_q.data);
  EXPECT_EQ(same.d_k.data, computed.d_k.data);
  EXPECT_EQ(same.d_gate.data, computed.d_gate.data);
  EXPECT_EQ(same.d_beta_logits.data, computed.d_beta_logits.data);
  for (Array<double>* stored : {&in.stored_q, &in.stored_k, &in.stored_g, &in.stored_beta})
    for (double& value : stored->data) value *= 1.0 + 0x1p-8;
  const KdaAttentionGradients<double> other = kda_attention_backward(in, d);
  const DeltaRuleGradients<double> rule = delta_rule_backward(in.stored_q, in.stored_k, in.v, in.stored_g,
                                                              in.stored_beta, in.initial_state, {}, {}, d.d_o, {});
  EXPECT_EQ(other.d_v.data, rule.d_v.data);
  EXPECT_EQ(other.d_q.data, l2norm_backward(in.q, in.l2norm_eps, rule.d_q, in.stored_q).data);
  EXPECT_NE(other.d_q.data, l2norm_backward(in.q, in.l2norm_eps, rule.d_q).data);
  EXPECT_EQ(other.d_gate.data, kda_gate_backward(in.gate, in.A_log, in.dt_bias, in.lower_bound, rule.d_g).d_f.data);
}

TEST(KdaAttentionBackward, equals_central_differences) {
  Numbers numbers;
  const Index cu({5}, {0, 3, 3, 4, 9});
  for (const std::optional<double> bound : {std::optional<double>(), std::optional<double>(-5.0)}) {
    const auto forward = [&](const auto& x) { return attention_outputs(x, cu, bound); };
    const auto backward = [&](const auto& x, const auto& d) { return attention_gradients(x, cu, bound, d); };
    const Arrays<double> inputs{
        numbers.array({9, 2, 3}),           numbers.array({9, 2, 3}),   numbers.array({9, 2, 2}),
        times(6, numbers.array({9, 2, 3})), numbers.array({2}),         numbers.array({6}),
        times(8, numbers.array({9, 2})),    numbers.array({4, 2, 3, 2})};
    expect_gradients("state and bias", forward, backward, inputs);
    Arrays<double> fewer = inputs;
    fewer[5] = fewer[7] = Array<double>();
    expect_gradients("neither", forward, backward, fewer);
  }
}

TEST(KdaAttentionBackward, T26_zero_queries_and_keys_give_finite_gradients) {
  Numbers numbers;
  Arrays<double> inputs{Array<double>({3, 1, 2}), Array<double>({3, 1, 2}),   numbers.array({3, 1, 2}),
                        numbers.array({3, 1, 2}), numbers.array({1}),         numbers.array({2}),
                        numbers.array({3, 1}),    numbers.array({1, 1, 2, 2})};
  const Arrays<double> cotangents{numbers.array({3, 1, 2}), numbers.array({1, 1, 2, 2}), {}, {}};
  for (const Array<double>& gradient : attention_gradients(inputs, Index(), {-5.0}, cotangents)) {
    for (const double x : gradient.data) EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(KdaBackwardOps, every_op_of_the_family_has_its_backward) {
  OpTable<double> forward, backward;
  add_kda_ops(forward);
  add_kda_backward_ops(backward);
  EXPECT_EQ(backward.size(), forward.size());
  for (const auto& op : forward) EXPECT_EQ(backward.count(op.first + ".backward"), 1U) << op.first;
}

class Calls {
 public:
  Calls() { add_kda_backward_ops(table_); }
  void set(const std::string& name, Shape shape, const std::vector<double>& x) {
    call_.inputs.insert_or_assign(name, Tensor::from_reals(DType::kF64, std::move(shape), x));
  }
  void set(const std::string& name, const std::vector<std::int64_t>& x) {
    call_.inputs.insert_or_assign(name, Tensor::from_integers(DType::kI64, {static_cast<std::int64_t>(x.size())}, x));
  }
  void attribute(const std::string& name, const nlohmann::json& value) { call_.attributes[name] = value; }
  std::vector<double> operator()(const std::string& op, const std::string& output) const {
    return std::get<Array<double>>(table_.at(op)(Call<double>(call_)).at(output)).data;
  }
  std::size_t outputs(const std::string& op) const { return table_.at(op)(Call<double>(call_)).size(); }

 private:
  OpTable<double> table_;
  OpCall call_;
};

using Values = std::vector<double>;

TEST(KdaBackwardOps, calls_read_operands_and_attributes_by_their_names) {
  Calls calls;
  calls.set("u", {2, 1}, {0, 0});
  calls.set("weight", {1, 2}, {4, 2});
  calls.set("initial", {1, 1}, {0});
  calls.set("d_y", {2, 1}, {1, 3});
  EXPECT_EQ(calls("kda_conv.backward", "d_u"), (Values{1 + 6, 3}));  // SiLU'(0) = 1/2
  EXPECT_EQ(calls("kda_conv.backward", "d_initial"), Values{2});
  calls.set("cu_seqlens", {0, 1, 2});
  EXPECT_EQ(calls("kda_conv.backward", "d_u"), (Values{1, 3}));

  calls.set("f", {1, 1, 1}, {-1});
  calls.set("A_log", {1}, {0});
  calls.set("dt_bias", {1}, {1});
  calls.set("d_g", {1, 1, 1}, {2});
  calls.attribute("lower_bound", -4.0);
  EXPECT_EQ(calls("kda_gate.backward", "d_f"), Values{-2});
  EXPECT_EQ(calls("kda_gate.backward", "d_dt_bias"), Values{-2});
  EXPECT_EQ(calls("kda_gate.backward", "d_A_log"), Values{0});
  calls.set("b", {1, 1}, {0});
  calls.set("d_beta", {1, 1}, {4});
  EXPECT_EQ(calls("beta.backward", "d_b"), Values{1});
}

TEST(KdaBackwardOps, calls_of_the_delta_rule_read_both_cotangents) {
  Calls calls;
  calls.attribute("scale", 2.0);
  calls.attribute("chunk", 64);
  for (const char* name : {"q", "k", "v"}) calls.set(name, {1, 1, 1}, {name[0] == 'v' ? 3.0 : 1.0});
  calls.set("g", {1, 1, 1}, {0});
  calls.set("beta", {1, 1}, {0.5});
  calls.set("cu_seqlens", {0, 1});
  calls.set("initial_state", {1, 1, 1, 1}, {1});
  calls.set("d_o", {1, 1, 1}, {1});
  calls.set("d_final_state", {1, 1, 1, 1}, {2});
  // u = 2, S = 2, P = 2 + 2 = 4, dd = 4, dv = 2, dS' = 2
  for (const std::string op : {"delta_rule.backward", "delta_rule_chunked.backward"}) {
    EXPECT_EQ(calls(op, "d_q"), Values{4}) << op;
    EXPECT_EQ(calls(op, "d_k"), Values{4 * 1 - 1 * 2}) << op;
    EXPECT_EQ(calls(op, "d_v"), Values{2}) << op;
    EXPECT_EQ(calls(op, "d_g"), Values{2}) << op;
    EXPECT_EQ(calls(op, "d_beta"), Values{8}) << op;
    EXPECT_EQ(calls(op, "d_initial_state"), Values{2}) << op;
    EXPECT_EQ(calls.outputs(op), 6U);
  }
}

TEST(KdaBackwardOps, a_call_of_the_fused_op_adds_the_direct_cotangents) {
  Calls calls;
  calls.attribute("scale", 1.0);
  calls.attribute("l2norm_eps", 1e-6);
  calls.attribute("lower_bound", -4.0);
  for (const char* name : {"q", "k", "v", "gate"}) calls.set(name, {1, 1, 1}, {0});
  calls.set("A_log", {1}, {0});
  calls.set("beta_logits", {1, 1}, {0});
  calls.set("d_g", {1, 1, 1}, {2});
  calls.set("d_beta", {1, 1}, {4});
  EXPECT_EQ(calls("kda_attention.backward", "d_gate"), Values{-2});
  EXPECT_EQ(calls("kda_attention.backward", "d_beta_logits"), Values{1});
  EXPECT_EQ(calls.outputs("kda_attention.backward"), 6U);  // no dt_bias, no initial state
}

}  // namespace
}  // namespace assay::reference
