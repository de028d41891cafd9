#include "reference/ops/mhc.h"

#include <algorithm>

#include "reference/linear_algebra.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// 1 / rms of one token's flattened streams, in either public form.
template <class T>
T inverse_rms(const T* x, std::int64_t values, const MappingOptions& options) {
  const T squares = dot(x, 1, x, 1, values);
  const T count(static_cast<double>(values));
  if (options.norm_eps_inside_sqrt) return rsqrt(squares / count + constant<T>(options.norm_eps));
  return T(1.0) / (sqrt(squares) / sqrt(count) + constant<T>(options.norm_eps));
}

}  // namespace

template <class T>
Array<T> stream_expand(const Array<T>& x, std::int64_t n) {
  const std::int64_t width = x.dim(-1), rows = width == 0 ? 0 : x.size() / width;
  Shape shape = x.shape;
  shape.insert(shape.end() - 1, n);
  Array<T> y(shape);
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t c = 0; c < width; ++c) y[(t * n + i) * width + c] = x[t * width + c];
  return y;
}

template <class T>
Mapping<T> mhc_mapping(const Array<T>& x, const Array<T>& weight, const Array<T>& alpha, const Array<T>& bias,
                       const MappingOptions& options) {
  const std::int64_t tokens = x.dim(0), n = x.dim(1), values = n * x.dim(2), outputs = n * n + 2 * n;
  Mapping<T> m;
  m.projection = matmul_nt(x.reshaped({tokens, values}), weight);
  m.inverse_rms = Array<T>({tokens, 1});
  m.mapping_logits = Array<T>({tokens, outputs});
  m.h_pre = Array<T>({tokens, n});
  m.h_post = Array<T>({tokens, n});
  Array<T> res_logits({tokens, n, n});
  parallel_for(tokens, [&](std::int64_t t) {
    const T r = inverse_rms(x.row(t, values), values, options);
    m.inverse_rms[t] = r;
    for (std::int64_t o = 0; o < outputs; ++o) {
      const T& factor = alpha[o < n ? 0 : (o < 2 * n ? 1 : 2)];
      const T logit = r * m.projection.at(t, o) * factor + bias[o];
      m.mapping_logits.at(t, o) = logit;
      if (o < n) {
        m.h_pre.at(t, o) = round_at(point("mhc_mapping/h"), sigmoid(logit) + constant<T>(options.pre_eps));
      } else if (o < 2 * n) {
        m.h_post.at(t, o - n) = round_at(point("mhc_mapping/h"), T(2.0) * sigmoid(logit));
      } else {
        res_logits[t * n * n + o - 2 * n] = logit;
      }
    }
  });
  m.h_res = sinkhorn(res_logits, options.iterations, options.sinkhorn_eps).h_res;
  for (T& value : m.h_res.data) value = round_at(point("mhc_mapping/h"), value);
  return m;
}

template <class T>
Array<T> mhc_aggregate(const Array<T>& x, const Array<T>& h_pre, bool in_fp32) {
  const std::int64_t tokens = x.dim(0), n = x.dim(1), width = x.dim(2);
  Array<T> y({tokens, width});
  parallel_for(tokens, [&](std::int64_t t) {
    const std::vector<T> ones(static_cast<std::size_t>(n), T(1.0));
    std::vector<T> products(static_cast<std::size_t>(n));
    for (std::int64_t c = 0; c < width; ++c) {
      if (in_fp32) {
        y.at(t, c) = round_at(point("mhc_aggregate/y"), dot(h_pre.row(t, n), 1, x.row(t, n * width) + c, width, n));
        continue;
      }
      for (std::int64_t j = 0; j < n; ++j)
        products[static_cast<std::size_t>(j)] = round_at(point("mhc_aggregate/products"), h_pre.at(t, j) * x.at(t, j, c));
      y.at(t, c) = round_at(point("mhc_aggregate/y"), dot(products.data(), 1, ones.data(), 1, n));
    }
  });
  return y;
}

template <class T>
Array<T> mhc_mix(const Array<T>& residual, const Array<T>& branch, const Array<T>& h_post, const Array<T>& h_res,
                 const Array<T>& branch_bias, bool in_fp32) {
  const std::int64_t tokens = residual.dim(0), n = residual.dim(1), width = residual.dim(2);
  const auto stored = [in_fp32](const T& value) { return in_fp32 ? value : round_at(point("mhc_mix/parts"), value); };
  const auto coefficient = [](const T& value) { return round_at(point("mhc_mix/coefficients"), value); };
  Array<T> y(residual.shape);
  parallel_for(tokens, [&](std::int64_t t) {
    std::vector<T> res(static_cast<std::size_t>(n * n));
    std::transform(h_res.row(t, n * n), h_res.row(t + 1, n * n), res.begin(), coefficient);
    for (std::int64_t j = 0; j < n; ++j) {
      const T post = coefficient(h_post.at(t, j));
      for (std::int64_t c = 0; c < width; ++c) {
        const T mixed = stored(dot(res.data() + j, n, residual.row(t, n * width) + c, width, n));
        T expanded = stored(post * branch.at(t, c));
        if (branch_bias.size()) expanded = stored(expanded + stored(post * branch_bias[c]));
        y.at(t, j, c) = round_at(point("mhc_mix/y"), expanded + mixed);
      }
    }
  });
  return y;
}

template <class T>
Array<T> contract_mean(const Array<T>& x, bool in_fp32) {
  const std::int64_t tokens = x.dim(0), n = x.dim(1), width = x.dim(2);
  const std::vector<T> ones(static_cast<std::size_t>(n), T(1.0));
  Array<T> y({tokens, width});
  parallel_for(tokens, [&](std::int64_t t) {
    for (std::int64_t c = 0; c < width; ++c) {
      const T sum = dot(ones.data(), 1, x.row(t, n * width) + c, width, n);
      y.at(t, c) = round_at(point("stream_contract/y"), (in_fp32 ? sum : round_at(point("stream_contract/sum"), sum)) / T(static_cast<double>(n)));
    }
  });
  return y;
}

template <class T>
Array<T> contract_learned(const Array<T>& x, const Array<T>& fn, const Array<T>& base, const Array<T>& scale,
                          double eps) {
  const std::int64_t tokens = x.dim(0), n = x.dim(1), values = n * x.dim(2);
  const Array<T> projection = matmul_nt(x.reshaped({tokens, values}), fn);
  MappingOptions options;
  options.norm_eps = eps;
  Array<T> p({tokens, n});
  parallel_for(tokens, [&](std::int64_t t) {
    const T r = inverse_rms(x.row(t, values), values, options);
    for (std::int64_t j = 0; j < n; ++j)
      p.at(t, j) = sigmoid(projection.at(t, j) * r * scale[0] + base[j]) + constant<T>(eps);
  });
  return mhc_aggregate(x, p);
}

template <class T>
void add_mhc_ops(OpTable<T>& table) {
  table["stream_expand"] = [](const Call<T>& call) {
    return Results<T>{{"y", stream_expand(call.in("x"), call.integer("n"))}};
  };
  table["mhc_mapping"] = [](const Call<T>& call) {
    const MappingOptions options{.norm_eps = call.real("norm_eps"),
                                 .norm_eps_inside_sqrt = call.flag("norm_eps_inside_sqrt"),
                                 .pre_eps = call.real("pre_eps"),
                                 .sinkhorn_eps = call.real("sinkhorn_eps"),
                                 .iterations = call.integer("iterations")};
    Mapping<T> m = mhc_mapping(call.in("x"), call.in("weight"), call.in("alpha"), call.in("bias"), options);
    return Results<T>{{"h_pre", m.h_pre},           {"h_post", m.h_post},
                      {"h_res", m.h_res},           {"inverse_rms", m.inverse_rms},
                      {"projection", m.projection}, {"mapping_logits", m.mapping_logits}};
  };
  table["sinkhorn"] = [](const Call<T>& call) {
    Sinkhorn<T> s = sinkhorn(call.in("logits"), call.integer("iterations"), call.real("eps"));
    return Results<T>{{"h_res", s.h_res}, {"row_sums", s.row_sums}, {"column_sums", s.column_sums}};
  };
  table["mhc_aggregate"] = [](const Call<T>& call) {
    return Results<T>{{"y", mhc_aggregate(call.in("x"), call.in("h_pre"), call.flag("keep_mappings_in_fp32"))}};
  };
  table["mhc_mix"] = [](const Call<T>& call) {
    const Array<T> bias = call.has("branch_bias") ? call.in("branch_bias") : Array<T>();
    return Results<T>{{"y", mhc_mix(call.in("residual"), call.in("branch"), call.in("h_post"), call.in("h_res"), bias,
                                    call.flag("keep_mappings_in_fp32"))}};
  };
  table["stream_contract"] = [](const Call<T>& call) {
    const std::string mode = call.text("mode");
    if (mode == "mean") return Results<T>{{"y", contract_mean(call.in("x"), call.flag("mean_in_fp32"))}};
    if (mode != "learned") {
      throw InputError("stream_contract: attribute mode", "\"" + mode + "\"", "\"mean\" or \"learned\" is allowed");
    }
    for (const char* operand : {"fn", "base", "scale"})
      if (!call.has(operand)) {
        throw InputError(std::string("stream_contract: operand ") + operand, "missing", "mode \"learned\" needs it");
      }
    return Results<T>{
        {"y", contract_learned(call.in("x"), call.in("fn"), call.in("base"), call.in("scale"), call.real("eps"))}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                      \
  template Array<T> stream_expand(const Array<T>&, std::int64_t);                                                 \
  template Mapping<T> mhc_mapping(const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&,             \
                                  const MappingOptions&);                                                         \
  template Array<T> mhc_aggregate(const Array<T>&, const Array<T>&, bool);                                        \
  template Array<T> mhc_mix(const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&,  \
                            bool);                                                                                \
  template Array<T> contract_mean(const Array<T>&, bool);                                                         \
  template Array<T> contract_learned(const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&, double); \
  template void add_mhc_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
