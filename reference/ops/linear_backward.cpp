#include "reference/ops/linear_backward.h"

#include <algorithm>

#include "reference/linear_algebra.h"
#include "reference/ops/layout.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

template <class T>
void round_all(Array<T>& x) {
  for (T& value : x.data) value = round_at(point("linear.backward/d_x"), value);
}

/// Matrix h of x [T, H, D]: [T, D].
template <class T>
Array<T> head_of(const Array<T>& x, std::int64_t h) {
  const std::int64_t tokens = x.dim(0), heads = x.dim(1), width = x.dim(2);
  Array<T> result({tokens, width});
  for (std::int64_t t = 0; t < tokens; ++t) std::copy_n(x.row(t * heads + h, width), width, result.row(t, width));
  return result;
}

/// Rows [begin, end) of the array seen as [size / width, width].
template <class T>
Array<T> rows_of(const Array<T>& x, std::int64_t begin, std::int64_t end, std::int64_t width) {
  Array<T> result({end - begin, width});
  std::copy(x.row(begin, width), x.row(end, width), result.data.begin());
  return result;
}

template <class T>
Array<T> cotangent(const Call<T>& call, const char* operand) {
  return call.has(operand) ? call.in(operand) : Array<T>();
}

}  // namespace

template <class T>
Array<T> transposed(const Array<T>& matrix) {
  const std::int64_t rows = matrix.dim(0), columns = matrix.dim(1);
  Array<T> result({columns, rows});
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) result[j * rows + i] = matrix[i * columns + j];
  return result;
}

template <class T>
LinearGradients<T> product_backward(const Array<T>& x, const Array<T>& weight, const Array<T>& dy) {
  const std::int64_t outputs = weight.dim(0), inputs = weight.dim(1);
  const std::int64_t rows = outputs == 0 ? 0 : dy.size() / outputs;
  ASSAY_CHECK(x.size() == rows * inputs);
  const Array<T> x_rows = x.reshaped({rows, inputs}), dy_rows = dy.reshaped({rows, outputs});
  return {
      matmul_nt(dy_rows, transposed(weight)).reshaped(x.shape), matmul_nt(transposed(dy_rows), transposed(x_rows)), {}};
}

template <class T>
LinearGradients<T> linear_backward(const Array<T>& x, const Array<T>& weight, bool has_bias, const Array<T>& dy) {
  const std::int64_t outputs = weight.dim(0);
  if (dy.size() == 0) return {Array<T>(x.shape), Array<T>(weight.shape), has_bias ? Array<T>({outputs}) : Array<T>()};
  LinearGradients<T> result = product_backward(x, weight, dy);
  round_all(result.d_x);
  if (has_bias) {
    const T one(1.0);
    result.d_bias = Array<T>({outputs});
    parallel_for(outputs, [&](std::int64_t n) {
      result.d_bias[n] = dot(dy.data.data() + n, outputs, &one, 0, dy.size() / outputs);
    });
  }
  return result;
}

template <class T>
HeadLinearGradients<T> head_linear_backward(const Array<T>& q, const Array<T>& weight, const Array<T>& dy) {
  const std::int64_t tokens = q.dim(0), heads = weight.dim(0), outputs = weight.dim(1), inputs = weight.dim(2);
  HeadLinearGradients<T> result{Array<T>(q.shape), Array<T>(weight.shape)};
  if (dy.size() == 0) return result;
  ASSAY_CHECK(dy.size() == tokens * heads * outputs);
  for (std::int64_t h = 0; h < heads; ++h) {
    const LinearGradients<T> head =
        product_backward(head_of(q, h), rows_of(weight, h * outputs, (h + 1) * outputs, inputs), head_of(dy, h));
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < inputs; ++i) result.d_q.at(t, h, i) = round_at(point("head_linear.backward/d_q"), head.d_x.at(t, i));
    std::copy(head.d_weight.data.begin(), head.d_weight.data.end(), result.d_weight.row(h * outputs, inputs));
  }
  return result;
}

template <class T>
GroupedLinearGradients<T> grouped_linear_backward(const Array<T>& x, const Index& offsets, const Array<T>& weight,
                                                  const Array<T>& dy) {
  const std::int64_t outputs = weight.dim(1), inputs = weight.dim(2);
  check_boundaries(offsets, x.dim(0), "offsets", Empty::kAllowed);
  GroupedLinearGradients<T> result{Array<T>(x.shape), Array<T>(weight.shape)};
  if (dy.size() == 0) return result;
  ASSAY_CHECK(dy.size() == x.dim(0) * outputs);
  for (std::int64_t e = 0; e + 1 < offsets.size(); ++e) {
    const std::int64_t begin = offsets[e], end = offsets[e + 1];
    if (begin == end) continue;
    LinearGradients<T> group =
        product_backward(rows_of(x, begin, end, inputs), rows_of(weight, e * outputs, (e + 1) * outputs, inputs),
                         rows_of(dy, begin, end, outputs));
    round_all(group.d_x);
    std::copy(group.d_x.data.begin(), group.d_x.data.end(), result.d_x.row(begin, inputs));
    std::copy(group.d_weight.data.begin(), group.d_weight.data.end(), result.d_weight.row(e * outputs, inputs));
  }
  return result;
}

template <class T>
void add_linear_backward_ops(OpTable<T>& table) {
  table["linear.backward"] = [](const Call<T>& call) {
    const bool has_bias = call.has("bias");
    LinearGradients<T> g = linear_backward(call.in("x"), call.in("weight"), has_bias, cotangent(call, "d_y"));
    Results<T> results{{"d_x", std::move(g.d_x)}, {"d_weight", std::move(g.d_weight)}};
    if (has_bias) results["d_bias"] = std::move(g.d_bias);
    return results;
  };
  table["head_linear.backward"] = [](const Call<T>& call) {
    HeadLinearGradients<T> g = head_linear_backward(call.in("q"), call.in("weight"), cotangent(call, "d_y"));
    return Results<T>{{"d_q", std::move(g.d_q)}, {"d_weight", std::move(g.d_weight)}};
  };
  table["grouped_linear.backward"] = [](const Call<T>& call) {
    GroupedLinearGradients<T> g =
        grouped_linear_backward(call.in("x"), call.index("offsets"), call.in("weight"), cotangent(call, "d_y"));
    return Results<T>{{"d_x", std::move(g.d_x)}, {"d_weight", std::move(g.d_weight)}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                 \
  template Array<T> transposed(const Array<T>&);                                                             \
  template LinearGradients<T> product_backward(const Array<T>&, const Array<T>&, const Array<T>&);           \
  template LinearGradients<T> linear_backward(const Array<T>&, const Array<T>&, bool, const Array<T>&);      \
  template HeadLinearGradients<T> head_linear_backward(const Array<T>&, const Array<T>&, const Array<T>&);   \
  template GroupedLinearGradients<T> grouped_linear_backward(const Array<T>&, const Index&, const Array<T>&, \
                                                             const Array<T>&);                               \
  template void add_linear_backward_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
