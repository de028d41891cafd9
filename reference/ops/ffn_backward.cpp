#include "reference/ops/ffn_backward.h"

#include "reference/ops/kink.h"

namespace assay::reference {

template <class T>
SwigluGradient<T> swiglu_backward(const Array<T>& gate, const Array<T>& up, std::optional<double> limit,
                                  const Array<T>& dy) {
  ASSAY_CHECK(gate.size() == up.size() && (dy.size() == 0 || dy.size() == gate.size()));
  SwigluGradient<T> gradient{Array<T>(gate.shape), Array<T>(up.shape)};
  for (std::int64_t i = 0; i < dy.size(); ++i) {
    const T a = limit ? clamp_above(gate[i], *limit) : gate[i];
    const T b = limit ? clamp_below(clamp_above(up[i], *limit), -*limit) : up[i];
    const T s = sigmoid(a);
    T d_up = dy[i] * round_at(point("swiglu.backward/silu"), a * s);
    T d_gate = round_at(point("swiglu.backward/d_silu"), dy[i] * b) * (s * (T(1.0) + a * (T(1.0) - s)));
    if (limit) {
      d_up = where_at_most(up[i], *limit, d_up);
      d_up = where_at_most(T(-up[i]), *limit, d_up);
      d_gate = where_at_most(gate[i], *limit, d_gate);
    }
    gradient.d_up[i] = round_at(point("swiglu.backward/d_up"), d_up);
    gradient.d_gate[i] = round_at(point("swiglu.backward/d_gate"), d_gate);
  }
  return gradient;
}

template <class T>
ResidualAddGradient<T> residual_add_backward(const Shape& shape, const Array<T>& dy) {
  const Array<T> d = dy.size() ? dy.reshaped(shape) : Array<T>(shape);
  return {d, d};
}

template <class T>
void add_ffn_backward_ops(OpTable<T>& table) {
  const auto cotangent = [](const Call<T>& call) { return call.has("d_y") ? call.in("d_y") : Array<T>(); };
  table["swiglu.backward"] = [cotangent](const Call<T>& call) {
    SwigluGradient<T> g = swiglu_backward(call.in("gate"), call.in("up"), call.optional_real("limit"), cotangent(call));
    return Results<T>{{"d_gate", std::move(g.d_gate)}, {"d_up", std::move(g.d_up)}};
  };
  table["residual_add.backward"] = [cotangent](const Call<T>& call) {
    ResidualAddGradient<T> g = residual_add_backward(call.tensor("a").shape(), cotangent(call));
    return Results<T>{{"d_a", std::move(g.d_a)}, {"d_b", std::move(g.d_b)}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                          \
  template SwigluGradient<T> swiglu_backward(const Array<T>&, const Array<T>&, std::optional<double>, \
                                             const Array<T>&);                                        \
  template ResidualAddGradient<T> residual_add_backward(const Shape&, const Array<T>&);               \
  template void add_ffn_backward_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
