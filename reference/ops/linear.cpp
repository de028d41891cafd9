#include "reference/ops/linear.h"

#include "reference/linear_algebra.h"
#include "reference/ops/layout.h"
#include "reference/parallel.h"

namespace assay::reference {

template <class T>
Array<T> linear(const Array<T>& x, const Array<T>& weight, const Array<T>& bias) {
  Array<T> y = matmul_nt(x, weight);
  const std::int64_t columns = weight.dim(0);
  for (std::int64_t i = 0; i < y.size(); ++i) y[i] = round_at(point("linear/y"), bias.size() ? y[i] + bias[i % columns] : y[i]);
  return y;
}

template <class T>
Array<T> head_linear(const Array<T>& q, const Array<T>& weight) {
  const std::int64_t tokens = q.dim(0), heads = weight.dim(0), outputs = weight.dim(1), inputs = weight.dim(2);
  Array<T> y({tokens, heads, outputs});
  parallel_for(tokens * heads, [&](std::int64_t row) {
    const T* matrix = weight.row(row % heads * outputs, inputs);
    for (std::int64_t i = 0; i < outputs; ++i)
      y[row * outputs + i] = round_at(point("head_linear/y"), dot(q.row(row, inputs), 1, matrix + i * inputs, 1, inputs));
  });
  return y;
}

template <class T>
Array<T> grouped_linear(const Array<T>& x, const Index& offsets, const Array<T>& weight) {
  const std::int64_t rows = x.dim(0), inputs = x.dim(1), outputs = weight.dim(1);
  check_boundaries(offsets, rows, "offsets", Empty::kAllowed);
  std::vector<std::int64_t> expert(static_cast<std::size_t>(rows));
  for (std::int64_t e = 0; e + 1 < offsets.size(); ++e)
    for (std::int64_t row = offsets[e]; row < offsets[e + 1]; ++row) expert[static_cast<std::size_t>(row)] = e;
  Array<T> y({rows, outputs});
  parallel_for(rows, [&](std::int64_t row) {
    const T* matrix = weight.row(expert[static_cast<std::size_t>(row)] * outputs, inputs);
    for (std::int64_t i = 0; i < outputs; ++i)
      y[row * outputs + i] = round_at(point("grouped_linear/y"), dot(x.row(row, inputs), 1, matrix + i * inputs, 1, inputs));
  });
  return y;
}

template <class T>
void add_linear_ops(OpTable<T>& table) {
  table["linear"] = [](const Call<T>& call) {
    const Array<T> bias = call.has("bias") ? call.in("bias") : Array<T>();
    return Results<T>{{"y", linear(call.in("x"), call.in("weight"), bias)}};
  };
  table["head_linear"] = [](const Call<T>& call) {
    return Results<T>{{"y", head_linear(call.in("q"), call.in("weight"))}};
  };
  table["grouped_linear"] = [](const Call<T>& call) {
    return Results<T>{{"y", grouped_linear(call.in("x"), call.index("offsets"), call.in("weight"))}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                        \
  template Array<T> linear(const Array<T>&, const Array<T>&, const Array<T>&);      \
  template Array<T> head_linear(const Array<T>&, const Array<T>&);                  \
  template Array<T> grouped_linear(const Array<T>&, const Index&, const Array<T>&); \
  template void add_linear_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
