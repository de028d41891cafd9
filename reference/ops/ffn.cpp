#include "reference/ops/ffn.h"

namespace assay::reference {

template <class T>
Array<T> swiglu(const Array<T>& gate, const Array<T>& up, std::optional<double> limit) {
  ASSAY_CHECK(gate.size() == up.size());
  Array<T> y(gate.shape);
  for (std::int64_t i = 0; i < y.size(); ++i) {
    const T a = limit ? clamp_above(gate[i], *limit) : gate[i];
    const T b = limit ? clamp_below(clamp_above(up[i], *limit), -*limit) : up[i];
    y[i] = round_at(point("swiglu/y"), round_at(point("swiglu/silu"), a * sigmoid(a)) * b);
  }
  return y;
}

template <class T>
Array<T> residual_add(const Array<T>& a, const Array<T>& b) {
  ASSAY_CHECK(a.size() == b.size());
  Array<T> y(a.shape);
  for (std::int64_t i = 0; i < y.size(); ++i) y[i] = round_at(point("residual_add/y"), a[i] + b[i]);
  return y;
}

template <class T>
void add_ffn_ops(OpTable<T>& table) {
  table["swiglu"] = [](const Call<T>& call) {
    return Results<T>{{"y", swiglu(call.in("gate"), call.in("up"), call.optional_real("limit"))}};
  };
  table["residual_add"] = [](const Call<T>& call) {
    return Results<T>{{"y", residual_add(call.in("a"), call.in("b"))}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                         \
  template Array<T> swiglu(const Array<T>&, const Array<T>&, std::optional<double>); \
  template Array<T> residual_add(const Array<T>&, const Array<T>&);                  \
  template void add_ffn_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
