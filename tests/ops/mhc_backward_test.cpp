// Gradients of the hyper-connections. Cases: shared/cases/public_reports.md part 3 (T..).
#include "reference/ops/mhc_backward.h"

#include "tests/ops/central_difference_mhc.h"

namespace assay::reference {
namespace {

using namespace proof;  // NOLINT: the words of this file

struct Site {
  std::int64_t tokens, n, width;
  MappingOptions options;
  double scale = 1.0;
};

Arrays<double> inputs_of(const Site& site) {
  const std::int64_t outputs = site.n * site.n + 2 * site.n;
  return {seeded({site.tokens, site.n, site.width}, 1, site.scale), seeded({outputs, site.n * site.width}, 2, 0.3),
          seeded({3}, 3), seeded({outputs}, 4, 0.5)};
}

template <class T>
MappingCotangent<T> cotangent(const Arrays<T>& d) {
  return {d[0], d[1], d[2], d[3], d[4], d[5]};
}

template <class T>
Arrays<T> mapping_gradients(const Arrays<T>& in, const MappingOptions& options, const MappingCotangent<T>& d) {
  MappingGradient<T> g = mhc_mapping_backward(in[0], in[1], in[2], in[3], options, d);
  return {g.d_x, g.d_weight, g.d_alpha, g.d_bias};
}

void prove_mapping(const Site& site) {
  prove(
      inputs_of(site),
      [&]<class T>(const Arrays<T>& in) {
        Mapping<T> m = mhc_mapping(in[0], in[1], in[2], in[3], site.options);
        return Arrays<T>{m.h_pre, m.h_post, m.h_res, m.inverse_rms, m.projection, m.mapping_logits};
      },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        return mapping_gradients(in, site.options, cotangent(d));
      });
}

MappingOptions norm(bool inside, std::int64_t iterations) {
  return {.norm_eps = inside ? 1e-5 : 1e-6, .norm_eps_inside_sqrt = inside, .iterations = iterations};
}

TEST(MappingBackward, equals_central_differences) {
  for (const bool inside : {true, false}) {
    prove_mapping({2, 2, 3, norm(inside, 3)});
    prove_mapping({2, 3, 2, norm(inside, 2)});
    prove_mapping({2, 4, 2, norm(inside, 1)});
  }
}

TEST(MappingBackward, equals_central_differences_at_20_iterations) {
  prove_mapping({2, 4, 2, norm(true, 20)});
  prove_mapping({1, 4, 2, norm(false, 20)});
}

TEST(MappingBackward, equals_central_differences_for_tiny_streams) {
  for (const bool inside : {true, false}) prove_mapping({2, 2, 3, norm(inside, 3), 1e-3});
}

TEST(MappingBackward, each_cotangent_alone_may_be_empty) {
  const Site site{2, 2, 3, norm(true, 3)};
  const Arrays<double> in = inputs_of(site);
  const MappingCotangent<double> none;
  for (const Array<double>& gradient : mapping_gradients(in, site.options, none))
    for (const double value : gradient.data) EXPECT_EQ(value, 0.0);
}

/// The gradient of x at a token of zeros is W^T dP alone: the subgradient of |x| is 0 there.
template <class T>
void at_zero_streams(bool inside) {
  const Site site{1, 2, 3, norm(inside, 3)};
  Arrays<double> in = inputs_of(site);
  for (double& value : in[0].data) value = 0.0;
  MappingCotangent<T> d;
  d.d_h_pre = as<T>(seeded({1, 2}, 5));
  d.d_inverse_rms = as<T>(seeded({1, 1}, 6));
  const MappingGradient<T> g =
      mhc_mapping_backward(as<T>(in[0]), as<T>(in[1]), as<T>(in[2]), as<T>(in[3]), site.options, d);
  const double r = inside ? 1.0 / std::sqrt(1e-5) : 1e6;
  double largest = 0.0;
  for (std::int64_t k = 0; k < 6; ++k) {
    double expected = 0.0;
    for (std::int64_t o = 0; o < 2; ++o) {
      const double s = 1.0 / (1.0 + std::exp(-in[3][o]));
      expected += midpoint(d.d_h_pre[o]) * s * (1 - s) * in[2][0] * r * in[1].at(o, k);
    }
    EXPECT_NEAR(midpoint(g.d_x[k]), expected, 1e-12 * r);
    EXPECT_TRUE(std::isfinite(radius(g.d_x[k])));
    largest = std::max(largest, std::abs(expected));
  }
  EXPECT_GT(largest, 1.0);
}

TEST(MappingBackward, a_token_of_zeros_has_no_nan_in_either_norm) {
  for (const bool inside : {true, false}) {
    at_zero_streams<double>(inside);
    at_zero_streams<Real>(inside);
    at_zero_streams<Ball>(inside);
    at_zero_streams<Bound>(inside);
    at_zero_streams<Sampled>(inside);
  }
}

TEST(MappingBackward, T10_c_gradient_of_x_does_not_depend_on_how_many_tokens_share_the_product) {
  const ContextScope scope(with_bits(128));
  const Site site{16, 4, 8, norm(true, 20)};
  const Arrays<double> in = inputs_of(site);
  const Array<double> d_logits = seeded({16, 24}, 7);
  const auto gradient = [&]<class T>(std::int64_t begin, std::int64_t end, const T*) {
    const auto rows = [&](const Array<double>& x, Shape shape) {
      const std::int64_t width = x.size() / 16;
      return as<T>(Array<double>(std::move(shape), {x.data.begin() + begin * width, x.data.begin() + end * width}));
    };
    MappingCotangent<T> d;
    d.d_mapping_logits = rows(d_logits, {end - begin, 24});
    return mhc_mapping_backward(rows(in[0], {end - begin, 4, 8}), as<T>(in[1]), as<T>(in[2]), as<T>(in[3]),
                                site.options, d)
        .d_x;
  };
  const Array<double> doubles = gradient(0, 16, static_cast<double*>(nullptr));
  const Array<Ball> balls = gradient(0, 16, static_cast<Ball*>(nullptr));
  for (std::int64_t t = 0; t < 16; ++t) {
    const Array<double> alone = gradient(t, t + 1, static_cast<double*>(nullptr));
    const Array<Ball> ball_alone = gradient(t, t + 1, static_cast<Ball*>(nullptr));
    for (std::int64_t i = 0; i < 32; ++i) {
      EXPECT_EQ(alone[i], doubles[t * 32 + i]);
      EXPECT_TRUE(overlap(ball_alone[i], balls[t * 32 + i]));
      EXPECT_LT(radius(balls[t * 32 + i]), 1e-33);
    }
  }
}

TEST(AggregateBackward, equals_central_differences) {
  for (const std::int64_t n : {2, 3, 4})
    for (const bool in_fp32 : {true, false})
      prove(
          {seeded({2, n, 3}, 1), seeded({2, n}, 2)},
          [&]<class T>(const Arrays<T>& in) { return Arrays<T>{mhc_aggregate(in[0], in[1], in_fp32)}; },
          [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
            AggregateGradient<T> g = mhc_aggregate_backward(in[0], in[1], d[0], in_fp32);
            return Arrays<T>{g.d_x, g.d_h_pre};
          });
}

void prove_mix(std::int64_t n, bool with_bias, bool in_fp32) {
  Arrays<double> inputs{seeded({2, n, 3}, 1), seeded({2, 3}, 2), seeded({2, n}, 3), seeded({2, n, n}, 4)};
  if (with_bias) inputs.push_back(seeded({3}, 5));
  prove(
      inputs,
      [&]<class T>(const Arrays<T>& in) {
        return Arrays<T>{mhc_mix(in[0], in[1], in[2], in[3], with_bias ? in[4] : Array<T>(), in_fp32)};
      },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        MixGradient<T> g = mhc_mix_backward(in[0], in[1], in[2], in[3], with_bias ? in[4] : Array<T>(), d[0], in_fp32);
        Arrays<T> gradients{g.d_residual, g.d_branch, g.d_h_post, g.d_h_res};
        if (with_bias) gradients.push_back(g.d_branch_bias);
        return gradients;
      });
}

TEST(MixBackward, equals_central_differences) {
  for (const std::int64_t n : {2, 3, 4}) {
    prove_mix(n, false, true);
    prove_mix(n, true, n == 3);
  }
}

TEST(MixBackward, the_default_mode_rounds_products_to_the_activation_dtype) {
  Context half = with_bits(128);
  half.rounding = {.compute = 0x1p-24, .activation = 0x1p-8, .tiny = 0x1p-126};
  const ContextScope scope(half);
  const auto widths = [](bool in_fp32) {
    return mhc_mix_backward(as<Bound>(seeded({1, 2, 4}, 1)), as<Bound>(seeded({1, 4}, 2)), as<Bound>(seeded({1, 2}, 3)),
                            as<Bound>(seeded({1, 2, 2}, 4)), Array<Bound>(), as<Bound>(seeded({1, 2, 4}, 5)), in_fp32);
  };
  EXPECT_LT(widths(true).d_h_post[0].e, 1e-5);
  EXPECT_GT(widths(false).d_h_post[0].e, 1e-3);
  EXPECT_LT(widths(true).d_branch[0].e, widths(false).d_branch[0].e);
}

TEST(StreamBackward, expand_and_mean_equal_central_differences) {
  for (const std::int64_t n : {2, 3, 4}) {
    prove(
        {seeded({2, 3}, 1)}, [&]<class T>(const Arrays<T>& in) { return Arrays<T>{stream_expand(in[0], n)}; },
        [&]<class T>(const Arrays<T>&, const Arrays<T>& d) {
          return Arrays<T>{d[0].size() ? stream_expand_backward(d[0], n) : Array<T>({2, 3})};
        });
    prove(
        {seeded({2, n, 3}, 1)}, [&]<class T>(const Arrays<T>& in) { return Arrays<T>{contract_mean(in[0])}; },
        [&]<class T>(const Arrays<T>&, const Arrays<T>& d) {
          return Arrays<T>{d[0].size() ? contract_mean_backward(d[0], n) : Array<T>({2, n, 3})};
        });
  }
}

TEST(ContractBackward, learned_contraction_equals_central_differences) {
  for (const std::int64_t n : {2, 3, 4})
    for (const double scale : {1.0, 1e-3})
      prove(
          {seeded({2, n, 3}, 1, scale), seeded({n, n * 3}, 2), seeded({n}, 3), seeded({1}, 4)},
          [&]<class T>(const Arrays<T>& in) { return Arrays<T>{contract_learned(in[0], in[1], in[2], in[3], 1e-5)}; },
          [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
            ContractGradient<T> g = contract_learned_backward(in[0], in[1], in[2], in[3], 1e-5, d[0]);
            return Arrays<T>{g.d_x, g.d_fn, g.d_base, g.d_scale};
          });
}

TEST(MhcBackward, calls) {
  OpTable<double> table;
  add_mhc_backward_ops(table);
  const Site site{2, 2, 3, norm(false, 3)};
  const Arrays<double> in = inputs_of(site);
  const OpSpec mapping =
      backward_spec("mhc_mapping", {"h_pre", "h_post", "h_res", "inverse_rms", "projection", "mapping_logits"});
  MappingCotangent<double> d;
  d.d_h_res = seeded({2, 2, 2}, 9);
  d.d_projection = seeded({2, 8}, 10);
  const OpCall call = make_call(mapping, {{"norm_eps", 1e-6}, {"norm_eps_inside_sqrt", false}, {"iterations", 3}},
                                {{"x", tensor(in[0])},
                                 {"weight", tensor(in[1])},
                                 {"alpha", tensor(in[2])},
                                 {"bias", tensor(in[3])},
                                 {"d_h_res", tensor(d.d_h_res)},
                                 {"d_projection", tensor(d.d_projection)}});
  Results<double> found = table.at("mhc_mapping.backward")(Call<double>(call));
  const Arrays<double> expected = mapping_gradients(in, site.options, d);
  EXPECT_EQ(real_result(found, "d_x").data, expected[0].data);
  EXPECT_EQ(real_result(found, "d_weight").data, expected[1].data);
  EXPECT_EQ(real_result(found, "d_alpha").data, expected[2].data);
  EXPECT_EQ(real_result(found, "d_bias").data, expected[3].data);

  const Array<double> branch = seeded({2, 3}, 11), h_post = seeded({2, 2}, 12), h_res = seeded({2, 2, 2}, 13);
  const OpSpec mix_spec = backward_spec("mhc_mix", {"y"});
  const OpCall mix = make_call(mix_spec, {{"keep_mappings_in_fp32", false}},
                               {{"residual", tensor(in[0])},
                                {"branch", tensor(branch)},
                                {"h_post", tensor(h_post)},
                                {"h_res", tensor(h_res)},
                                {"d_y", tensor(in[0])}});
  found = table.at("mhc_mix.backward")(Call<double>(mix));
  EXPECT_EQ(real_result(found, "d_h_res").data,
            mhc_mix_backward(in[0], branch, h_post, h_res, Array<double>(), in[0], false).d_h_res.data);
  EXPECT_EQ(found.size(), 4U);

  const OpSpec contract_spec = backward_spec("stream_contract", {"y"});
  const OpCall mean = make_call(contract_spec, {}, {{"x", tensor(in[0])}, {"d_y", tensor(branch)}});
  found = table.at("stream_contract.backward")(Call<double>(mean));
  EXPECT_EQ(real_result(found, "d_x").data, contract_mean_backward(branch, 2).data);
  const OpCall incomplete = make_call(contract_spec, {{"mode", "learned"}}, {{"x", tensor(in[0])}});
  EXPECT_THROW(table.at("stream_contract.backward")(Call<double>(incomplete)), InputError);

  const OpSpec expand_spec = backward_spec("stream_expand", {"y"});
  const OpCall expand = make_call(expand_spec, {{"n", 2}}, {{"x", tensor(branch)}, {"d_y", tensor(in[0])}});
  found = table.at("stream_expand.backward")(Call<double>(expand));
  EXPECT_EQ(real_result(found, "d_x").data, stream_expand_backward(in[0], 2).data);

  const OpSpec sinkhorn_spec = backward_spec("sinkhorn", {"h_res", "row_sums", "column_sums"});
  const OpCall balance = make_call(sinkhorn_spec, {}, {{"logits", tensor(h_res)}, {"d_row_sums", tensor(h_post)}});
  found = table.at("sinkhorn.backward")(Call<double>(balance));
  EXPECT_EQ(real_result(found, "d_logits").data, sinkhorn_backward(h_res, 20, 1e-6, Array<double>(), h_post).data);

  const OpSpec aggregate_spec = backward_spec("mhc_aggregate", {"y"});
  const OpCall aggregate = make_call(aggregate_spec, {}, {{"x", tensor(in[0])}, {"h_pre", tensor(h_post)}});
  found = table.at("mhc_aggregate.backward")(Call<double>(aggregate));
  EXPECT_EQ(real_result(found, "d_h_pre").data, std::vector<double>(4, 0.0));
}

}  // namespace
}  // namespace assay::reference
