#include "reference/ops/norm_backward.h"

#include "reference/ops/cotangent.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// rsqrt(sum(x^2) / divisor + eps) of one row.
template <class T>
T inverse_root_of_squares(const T* x, std::int64_t n, double divisor, double eps) {
  return rsqrt(dot(x, 1, x, 1, n) / T(divisor) + constant<T>(eps));
}

template <class T>
std::int64_t rows_of(const Array<T>& x) {
  return x.dim(-1) == 0 ? 0 : x.size() / x.dim(-1);
}

/// sum over the rows of a * b, per column.
template <class T>
Array<T> column_sums(const Array<T>& a, const Array<T>& b) {
  const std::int64_t n = a.dim(-1);
  Array<T> sums({n});
  parallel_for(n, [&](std::int64_t i) { sums[i] = dot(a.data.data() + i, n, b.data.data() + i, n, rows_of(a)); });
  return sums;
}

/// d_x of one row: r (g - mean_g - xh mean(g xh)).
template <class T>
void row_gradient(const T* g, const T* xh, const T& r, const T& mean_g, std::int64_t n, T* d_x) {
  const T slope = r * dot(g, 1, xh, 1, n) / T(static_cast<double>(n));
  for (std::int64_t i = 0; i < n; ++i) d_x[i] = round_at(point("rms_norm.backward/d_x"), r * (g[i] - mean_g) - xh[i] * slope);
}

}  // namespace

template <class T>
RmsNormGradients<T> rms_norm_backward(const Array<T>& x, const Array<T>& weight, double eps, const Array<T>& dy) {
  const std::int64_t n = x.dim(-1);
  const Array<T> d = cotangent_or_zero(dy, x.shape, "rms_norm.backward d_y");
  Array<T> d_x(x.shape), normed(x.shape);
  parallel_for(rows_of(x), [&](std::int64_t row) {
    const T* in = x.row(row, n);
    T* xh = normed.row(row, n);
    const T r = inverse_root_of_squares(in, n, static_cast<double>(n), eps);
    std::vector<T> g(d.row(row, n), d.row(row, n) + n);
    for (std::int64_t i = 0; i < n; ++i) {
      xh[i] = in[i] * r;
      if (weight.size() == 0) continue;
      xh[i] = round_at(point("rms_norm.backward/normed"), xh[i]);
      g[static_cast<std::size_t>(i)] = round_at(point("rms_norm.backward/g"), g[static_cast<std::size_t>(i)] * weight[i]);
    }
    row_gradient(g.data(), xh, r, T(0.0), n, d_x.row(row, n));
  });
  return {std::move(d_x), weight.size() ? column_sums(d, normed) : Array<T>()};
}

template <class T>
LayerNormGradients<T> layer_norm_backward(const Array<T>& x, const Array<T>& weight, const Array<T>& bias, double eps,
                                          const Array<T>& dy) {
  const std::int64_t n = x.dim(-1);
  const T count(static_cast<double>(n));
  const std::vector<T> ones(static_cast<std::size_t>(n), T(1.0));
  const Array<T> d = cotangent_or_zero(dy, x.shape, "layer_norm.backward d_y");
  Array<T> d_x(x.shape), normed(x.shape);
  parallel_for(rows_of(x), [&](std::int64_t row) {
    const T* in = x.row(row, n);
    T* xh = normed.row(row, n);
    const T mean = dot(in, 1, ones.data(), 1, n) / count;
    for (std::int64_t i = 0; i < n; ++i) xh[i] = in[i] - mean;
    const T r = inverse_root_of_squares(xh, n, static_cast<double>(n), eps);
    std::vector<T> g(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      xh[i] = xh[i] * r;
      g[static_cast<std::size_t>(i)] = d[row * n + i] * weight[i];
    }
    row_gradient(g.data(), xh, r, T(dot(g.data(), 1, ones.data(), 1, n) / count), n, d_x.row(row, n));
  });
  LayerNormGradients<T> result{std::move(d_x), column_sums(d, normed), Array<T>()};
  if (bias.size()) result.d_bias = column_sums(d, Array<T>(d.shape, std::vector<T>(d.data.size(), T(1.0))));
  return result;
}

template <class T>
GatedRmsNormGradients<T> gated_rms_norm_backward(const Array<T>& o, const Array<T>& z, const Array<T>& weight,
                                                 double eps, const Array<T>& dy) {
  const std::int64_t n = o.dim(-1);
  const Array<T> d = cotangent_or_zero(dy, o.shape, "gated_rms_norm.backward d_y");
  Array<T> d_o(o.shape), d_z(z.shape), gated(o.shape);
  parallel_for(rows_of(o), [&](std::int64_t row) {
    const T* in = o.row(row, n);
    const T r = inverse_root_of_squares(in, n, static_cast<double>(n), eps);
    std::vector<T> xh(static_cast<std::size_t>(n)), g(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = row * n + i;
      const T s = sigmoid(z[at]), dw = d[at] * weight[i], normed = in[i] * r;
      xh[static_cast<std::size_t>(i)] = normed;
      g[static_cast<std::size_t>(i)] = dw * s;
      gated[at] = normed * s;
      d_z[at] = round_at(point("gated_rms_norm.backward/d_z"), dw * normed * s * (T(1.0) - s));
    }
    row_gradient(g.data(), xh.data(), r, T(0.0), n, d_o.row(row, n));
  });
  return {std::move(d_o), std::move(d_z), column_sums(d, gated)};
}

template <class T>
Array<T> l2norm_backward(const Array<T>& x, double eps, const Array<T>& dy, const Array<T>& stored) {
  const std::int64_t n = x.dim(-1);
  const Array<T> d = cotangent_or_zero(dy, x.shape, "l2norm.backward d_y");
  Array<T> d_x(x.shape);
  parallel_for(rows_of(x), [&](std::int64_t row) {
    const T *in = x.row(row, n), *out = d.row(row, n);
    const T r = inverse_root_of_squares(in, n, 1.0, eps);
    std::vector<T> y(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i)
      y[static_cast<std::size_t>(i)] = stored.size() ? stored[row * n + i] : round_at(point("l2norm.backward/normed"), in[i] * r);
    const T slope = r * dot(y.data(), 1, out, 1, n);
    for (std::int64_t i = 0; i < n; ++i)
      d_x[row * n + i] = round_at(point("l2norm.backward/d_x"), r * out[i] - y[static_cast<std::size_t>(i)] * slope);
  });
  return d_x;
}

template <class T>
void add_norm_backward_ops(OpTable<T>& table) {
  const auto array = [](const Call<T>& call, const char* name) { return call.has(name) ? call.in(name) : Array<T>(); };
  table["rms_norm.backward"] = [=](const Call<T>& call) {
    RmsNormGradients<T> d =
        rms_norm_backward(call.in("x"), array(call, "weight"), call.real("eps"), array(call, "d_y"));
    Results<T> results{{"d_x", std::move(d.d_x)}};
    if (call.has("weight")) results["d_weight"] = std::move(d.d_weight);
    return results;
  };
  table["layer_norm.backward"] = [=](const Call<T>& call) {
    LayerNormGradients<T> d =
        layer_norm_backward(call.in("x"), call.in("weight"), array(call, "bias"), call.real("eps"), array(call, "d_y"));
    Results<T> results{{"d_x", std::move(d.d_x)}, {"d_weight", std::move(d.d_weight)}};
    if (call.has("bias")) results["d_bias"] = std::move(d.d_bias);
    return results;
  };
  table["gated_rms_norm.backward"] = [=](const Call<T>& call) {
    GatedRmsNormGradients<T> d =
        gated_rms_norm_backward(call.in("o"), call.in("z"), call.in("weight"), call.real("eps"), array(call, "d_y"));
    return Results<T>{{"d_o", std::move(d.d_o)}, {"d_z", std::move(d.d_z)}, {"d_weight", std::move(d.d_weight)}};
  };
  table["l2norm.backward"] = [=](const Call<T>& call) {
    return Results<T>{{"d_x", l2norm_backward(call.in("x"), call.real("eps"), array(call, "d_y"))}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                           \
  template RmsNormGradients<T> rms_norm_backward(const Array<T>&, const Array<T>&, double, const Array<T>&);           \
  template LayerNormGradients<T> layer_norm_backward(const Array<T>&, const Array<T>&, const Array<T>&, double,        \
                                                     const Array<T>&);                                                 \
  template GatedRmsNormGradients<T> gated_rms_norm_backward(const Array<T>&, const Array<T>&, const Array<T>&, double, \
                                                            const Array<T>&);                                          \
  template Array<T> l2norm_backward(const Array<T>&, double, const Array<T>&, const Array<T>&);                        \
  template void add_norm_backward_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
