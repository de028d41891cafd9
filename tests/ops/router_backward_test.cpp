// Gradients of the router and of the sum over experts. Cases: shared/cases/public_reports.md part 3 (T..).
#include "reference/ops/router_backward.h"

#include "reference/parallel.h"
#include "tests/ops/central_difference_mhc.h"

namespace assay::reference {
namespace {

using namespace proof;  // NOLINT: the words of this file

RouterRule rule(std::int64_t topk, bool norm, std::int64_t groups = 1, std::int64_t topk_group = 1) {
  return {.topk = topk, .n_group = groups, .topk_group = topk_group, .norm_topk_prob = norm, .scale = 2.5};
}

template <class T>
RouterGradient<T> through(const Array<T>& x, const Array<T>& weight, const Array<double>& bias, const RouterRule& r,
                          const Array<T>& d_logits, const Array<T>& d_weights) {
  const Routing<T> routing = route(x, weight, as<T>(bias), r);
  return router_logits_backward(x, weight,
                                route_weights_backward(routing.logits, routing.experts, r, d_weights, d_logits));
}

void prove_router(const RouterRule& r, bool with_bias) {
  const Array<double> bias = with_bias ? seeded({6}, 5, 0.2) : Array<double>();
  prove(
      {seeded({3, 4}, 1), seeded({6, 4}, 2)},
      [&]<class T>(const Arrays<T>& in) {
        const Routing<T> routing = route(in[0], in[1], as<T>(bias), r);
        return Arrays<T>{routing.logits, routing.weights};
      },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        RouterGradient<T> g = through(in[0], in[1], bias, r, d[0], d[1]);
        return Arrays<T>{g.d_x, g.d_weight};
      });
}

TEST(RouterBackward, equals_central_differences) {
  prove_router(rule(2, true), true);
  prove_router(rule(2, false), true);
  prove_router(rule(1, true), false);
  prove_router(rule(6, true), false);
}

TEST(RouterBackward, equals_central_differences_with_groups) {
  prove_router(rule(2, true, 3, 2), true);
  prove_router(rule(2, false, 2, 1), true);
}

TEST(RouterBackward, only_chosen_experts_get_a_gradient) {
  const Array<double> logits = seeded({2, 5}, 3), dw = seeded({2, 2}, 4);
  const Index experts({2, 2}, {4, 1, 0, 3});
  const Array<double> d = route_weights_backward(logits, experts, rule(2, true), dw);
  for (const std::int64_t unchosen : {0, 2, 3, 5 + 1, 5 + 2, 5 + 4}) EXPECT_EQ(d[unchosen], 0.0);
  for (const std::int64_t chosen : {4, 1, 5 + 0, 5 + 3}) EXPECT_NE(d[chosen], 0.0);
}

TEST(RouterBackward, equal_cotangents_cancel_in_normalised_weights) {
  const ContextScope scope(with_bits(256));
  const Array<Real> d = route_weights_backward(as<Real>(seeded({1, 4}, 3)), Index({1, 2}, {1, 2}), rule(2, true),
                                               Array<Real>({1, 2}, {Real(1), Real(1)}));
  for (const Real& value : d.data) EXPECT_LT(distance(value, Real(0)), 1e-19);  // sum_eps = 1e-20 is all that is left
}

TEST(RouterBackward, T74_recompute_picks_the_same_set_among_equal_logits) {
  const Array<double> x({1, 2}, {1, 1}), weight({4, 2}, std::vector<double>(8, 0.25)), dw({1, 2}, {1, -2});
  const RouterGradient<double> first = through(x, weight, Array<double>(), rule(2, true), Array<double>(), dw);
  for (std::int64_t c = 0; c < 4; ++c) EXPECT_NE(first.d_weight[c], 0.0);  // experts 0 and 1
  for (std::int64_t c = 4; c < 8; ++c) EXPECT_EQ(first.d_weight[c], 0.0);
  const int before = jobs();
  for (int repetition = 0; repetition < 100; ++repetition) {
    set_jobs(1 + repetition % 4);
    EXPECT_EQ(route(x, weight, Array<double>(), rule(2, true)).experts.data, (std::vector<std::int64_t>{0, 1}));
    const RouterGradient<double> again = through(x, weight, Array<double>(), rule(2, true), Array<double>(), dw);
    EXPECT_EQ(again.d_x.data, first.d_x.data);
    EXPECT_EQ(again.d_weight.data, first.d_weight.data);
  }
  set_jobs(before);
}

TEST(RouterBackward, rejects_an_expert_out_of_range) {
  EXPECT_THROW(route_weights_backward(seeded({1, 3}, 1), Index({1, 1}, {3}), rule(1, true), seeded({1, 1}, 2)),
               InputError);
}

TEST(CombineBackward, equals_central_differences) {
  prove(
      {seeded({2, 3, 4}, 1), seeded({2, 3}, 2), seeded({2, 4}, 3)},
      []<class T>(const Arrays<T>& in) { return Arrays<T>{combine(in[0], in[1], in[2])}; },
      []<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        CombineGradient<T> g = combine_backward(in[0], in[1], true, d[0]);
        return Arrays<T>{g.d_expert_out, g.d_weights, g.d_shared};
      });
  EXPECT_EQ(combine_backward(seeded({2, 3, 4}, 1), seeded({2, 3}, 2), false, seeded({2, 4}, 3)).d_shared.size(), 0);
}

TEST(RouterBackward, calls) {
  OpTable<double> table;
  add_router_backward_ops(table);
  const Array<double> x = seeded({3, 4}, 1), weight = seeded({6, 4}, 2), bias = seeded({6}, 3, 0.2),
                      d_logits = seeded({3, 6}, 4), d_weights = seeded({3, 2}, 5);
  const OpSpec spec = backward_spec("router", {"logits", "weights"});
  const nlohmann::json attributes = {{"topk", 2}, {"scale", 2.5}};
  const OpCall call = make_call(spec, attributes,
                                {{"x", tensor(x)},
                                 {"weight", tensor(weight)},
                                 {"bias", tensor(bias)},
                                 {"d_logits", tensor(d_logits)},
                                 {"d_weights", tensor(d_weights)}});
  const RouterGradient<double> expected = through(x, weight, bias, rule(2, true), d_logits, d_weights);
  Results<double> found = table.at("router.backward")(Call<double>(call));
  EXPECT_EQ(real_result(found, "d_x").data, expected.d_x.data);
  EXPECT_EQ(real_result(found, "d_weight").data, expected.d_weight.data);
  EXPECT_EQ(found.size(), 2U);  // the bias gets no gradient
  const OpCall none = make_call(spec, attributes, {{"x", tensor(x)}, {"weight", tensor(weight)}});
  found = table.at("router.backward")(Call<double>(none));
  EXPECT_EQ(real_result(found, "d_weight").data, std::vector<double>(24, 0.0));

  const Array<double> out = seeded({3, 2, 4}, 6), shared = seeded({3, 4}, 7);
  const OpSpec combine_spec = backward_spec("combine", {"y"});
  const OpCall sum = make_call(combine_spec, {},
                               {{"expert_out", tensor(out)}, {"weights", tensor(d_weights)}, {"d_y", tensor(shared)}});
  found = table.at("combine.backward")(Call<double>(sum));
  EXPECT_EQ(found.count("d_shared"), 0U);
  EXPECT_EQ(real_result(found, "d_expert_out").data, combine_backward(out, d_weights, false, shared).d_expert_out.data);
}

}  // namespace
}  // namespace assay::reference
