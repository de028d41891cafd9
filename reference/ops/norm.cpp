#include "reference/ops/norm.h"

#include "reference/parallel.h"

namespace assay::reference {
namespace {

/// rsqrt(sum(x^2) / divisor + eps) of one row.
template <class T>
T inverse_root_of_squares(const T* x, std::int64_t n, double divisor, double eps) {
  return rsqrt(dot(x, 1, x, 1, n) / T(divisor) + constant<T>(eps));
}

/// body(x row, y row) for every row of the last dimension.
template <class T, class Body>
Array<T> over_rows(const Array<T>& x, const Body& body) {
  const std::int64_t width = x.dim(-1);
  Array<T> y(x.shape);
  if (width == 0) return y;
  parallel_for(x.size() / width, [&](std::int64_t i) { body(i, x.row(i, width), y.row(i, width)); });
  return y;
}

}  // namespace

template <class T>
Array<T> rms_norm(const Array<T>& x, const Array<T>& weight, double eps) {
  const std::int64_t n = x.dim(-1);
  return over_rows(x, [&](std::int64_t, const T* in, T* out) {
    const T r = inverse_root_of_squares(in, n, static_cast<double>(n), eps);
    for (std::int64_t i = 0; i < n; ++i) {
      const T normed = round_at(point("rms_norm/normed"), in[i] * r);
      out[i] = weight.size() ? round_at(point("rms_norm/y"), normed * weight[i]) : normed;
    }
  });
}

template <class T>
Array<T> layer_norm(const Array<T>& x, const Array<T>& weight, const Array<T>& bias, double eps) {
  const std::int64_t n = x.dim(-1);
  const std::vector<T> ones(static_cast<std::size_t>(n), T(1.0));
  return over_rows(x, [&](std::int64_t, const T* in, T* out) {
    const T mean = dot(in, 1, ones.data(), 1, n) / T(static_cast<double>(n));
    std::vector<T> centred(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) centred[static_cast<std::size_t>(i)] = in[i] - mean;
    const T r = inverse_root_of_squares(centred.data(), n, static_cast<double>(n), eps);
    for (std::int64_t i = 0; i < n; ++i) {
      T value = centred[static_cast<std::size_t>(i)] * r * weight[i];
      if (bias.size()) value = value + bias[i];
      out[i] = round_at(point("layer_norm/y"), value);
    }
  });
}

template <class T>
Array<T> gated_rms_norm(const Array<T>& o, const Array<T>& z, const Array<T>& weight, double eps) {
  const std::int64_t n = o.dim(-1);
  return over_rows(o, [&](std::int64_t row, const T* in, T* out) {
    const T r = inverse_root_of_squares(in, n, static_cast<double>(n), eps);
    for (std::int64_t i = 0; i < n; ++i) out[i] = round_at(point("gated_rms_norm/y"), in[i] * r * weight[i] * sigmoid(z[row * n + i]));
  });
}

template <class T>
Array<T> l2norm(const Array<T>& x, double eps) {
  const std::int64_t n = x.dim(-1);
  return over_rows(x, [&](std::int64_t, const T* in, T* out) {
    const T r = inverse_root_of_squares(in, n, 1.0, eps);
    for (std::int64_t i = 0; i < n; ++i) out[i] = round_at(point("l2norm/y"), in[i] * r);
  });
}

template <class T>
void add_norm_ops(OpTable<T>& table) {
  table["rms_norm"] = [](const Call<T>& call) {
    const Array<T> weight = call.has("weight") ? call.in("weight") : Array<T>();
    return Results<T>{{"y", rms_norm(call.in("x"), weight, call.real("eps"))}};
  };
  table["layer_norm"] = [](const Call<T>& call) {
    const Array<T> bias = call.has("bias") ? call.in("bias") : Array<T>();
    return Results<T>{{"y", layer_norm(call.in("x"), call.in("weight"), bias, call.real("eps"))}};
  };
  table["gated_rms_norm"] = [](const Call<T>& call) {
    return Results<T>{{"y", gated_rms_norm(call.in("o"), call.in("z"), call.in("weight"), call.real("eps"))}};
  };
  table["l2norm"] = [](const Call<T>& call) { return Results<T>{{"y", l2norm(call.in("x"), call.real("eps"))}}; };
}

#define ASSAY_INSTANTIATE(T)                                                                   \
  template Array<T> rms_norm(const Array<T>&, const Array<T>&, double);                        \
  template Array<T> layer_norm(const Array<T>&, const Array<T>&, const Array<T>&, double);     \
  template Array<T> gated_rms_norm(const Array<T>&, const Array<T>&, const Array<T>&, double); \
  template Array<T> l2norm(const Array<T>&, double);                                           \
  template void add_norm_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
