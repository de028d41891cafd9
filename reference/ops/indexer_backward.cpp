#include "reference/ops/indexer_backward.h"

#include <type_traits>

#include "reference/ops/indexer.h"
#include "reference/ops/linear_backward.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

template <class T>
Array<T> optional(const Call<T>& call, const char* operand) {
  return call.has(operand) ? call.in(operand) : Array<T>();
}

/// 1 where x > 0, else 0; both where a Ball or a Bound may be on either side.
template <class T>
T step(const T& x) {
  [[maybe_unused]] const double value = midpoint(x) > 0.0 ? 1.0 : 0.0;
  if constexpr (std::is_same_v<T, Ball>) {
    const Ball zero(0.0);
    if (certainly_less(zero, x)) return Ball(1.0);
    if (certainly_less(x, zero) || certainly_equal(x, zero)) return zero;
    Ball either(0.5);
    arb_add_error_2exp_si(either.data(), -1);
    return either;
  } else if constexpr (std::is_same_v<T, Bound>) {
    return {value, x.v - x.e < 0.0 && x.v + x.e > 0.0 ? 1.0 : 0.0};
  } else if constexpr (std::is_same_v<T, Real>) {
    return x > 0 ? Real(1) : Real(0);
  } else {
    return value;
  }
}

/// The slot with the largest midpoint, as the forward chooses it.
template <class T>
std::int64_t largest_slot(const Array<T>& exponentials, std::int64_t p, std::int64_t c) {
  std::int64_t top = 0;
  for (std::int64_t s = 1; s < exponentials.dim(1); ++s)
    if (midpoint(exponentials.at(p, s, c)) > midpoint(exponentials.at(p, top, c))) top = s;
  return top;
}

/// Gradients of gate + ape, [P, kpool, D], unrounded.
template <class T>
Array<T> gradients_of_slots(const KPool<T>& pool, const Array<T>& k, const Array<T>& d_pooled,
                            const Array<T>& d_weights, const Array<T>& d_exp) {
  const std::int64_t kpool = pool.weights.dim(1), d = k.dim(1);
  Array<T> dz(pool.weights.shape);
  parallel_for(pool.weights.dim(0), [&](std::int64_t p) {
    std::vector<T> d_weight(static_cast<std::size_t>(kpool));
    const T one(1.0);
    for (std::int64_t c = 0; c < d; ++c) {
      for (std::int64_t s = 0; s < kpool; ++s) {
        T value(0.0);
        if (d_pooled.size()) value = d_pooled.at(p, c) * k.at(pool.first_token[p] + s, c);
        if (d_weights.size()) value = value + d_weights.at(p, s, c);
        d_weight[static_cast<std::size_t>(s)] = value;
      }
      const T mean = dot(pool.weights.row(p * kpool, d) + c, d, d_weight.data(), 1, kpool);
      for (std::int64_t s = 0; s < kpool; ++s)
        dz.at(p, s, c) = pool.weights.at(p, s, c) * (d_weight[static_cast<std::size_t>(s)] - mean);
      if (d_exp.size() == 0) continue;
      for (std::int64_t s = 0; s < kpool; ++s)
        d_weight[static_cast<std::size_t>(s)] = d_exp.at(p, s, c) * pool.exp_of_score_minus_max.at(p, s, c);
      for (std::int64_t s = 0; s < kpool; ++s) dz.at(p, s, c) += d_weight[static_cast<std::size_t>(s)];
      dz.at(p, largest_slot(pool.exp_of_score_minus_max, p, c), c) -= dot(d_weight.data(), 1, &one, 0, kpool);
    }
  });
  return dz;
}

}  // namespace

template <class T>
KPoolGradients<T> kpool_compress_backward(const Array<T>& k, const Array<T>& gate, const Array<T>& ape,
                                          std::int64_t kpool, const Index& cu_seqlens, const Array<T>& d_pooled,
                                          const Array<T>& d_weights, const Array<T>& d_exp) {
  const KPool<T> pool = kpool_compress(k, gate, ape, kpool, cu_seqlens);
  const std::int64_t pools = pool.first_token.size(), d = k.dim(1);
  ASSAY_CHECK(d_pooled.size() == 0 || d_pooled.size() == pools * d);
  ASSAY_CHECK(d_weights.size() == 0 || d_weights.size() == pools * kpool * d);
  ASSAY_CHECK(d_exp.size() == 0 || d_exp.size() == pools * kpool * d);
  const Array<T> dz = gradients_of_slots(pool, k, d_pooled, d_weights, d_exp);
  KPoolGradients<T> result{Array<T>(k.shape), Array<T>(gate.shape), Array<T>(ape.shape)};
  parallel_for(pools, [&](std::int64_t p) {
    for (std::int64_t s = 0; s < kpool; ++s)
      for (std::int64_t c = 0; c < d; ++c) {
        const std::int64_t token = pool.first_token[p] + s;
        if (d_pooled.size())
          result.d_k.at(token, c) = round_at(point("kpool_compress.backward/d_k"), T(pool.weights.at(p, s, c) * d_pooled.at(p, c)));
        if (gate.size()) result.d_gate.at(token, c) = round_at(point("kpool_compress.backward/d_gate"), dz.at(p, s, c));
      }
  });
  const T one(1.0);
  if (pools > 0)
    parallel_for(ape.size(), [&](std::int64_t i) { result.d_ape[i] = dot(&dz[i], kpool * d, &one, 0, pools); });
  return result;
}

template <class T>
Array<T> hadamard_backward(const Array<T>& x, const Array<T>& d_y, bool rotate) {
  if (d_y.size() == 0) return Array<T>(x.shape);
  ASSAY_CHECK(d_y.size() == x.size());
  // H is symmetric: the transpose of the rotation is the rotation.
  Array<T> d_x = rotate ? hadamard_fp8(d_y, false, 0.0).transformed : d_y;
  for (T& value : d_x.data) value = round_at(point("hadamard_fp8.backward/d_x"), value);
  return std::move(d_x).reshaped(x.shape);
}

template <class T>
HeadWeightsGradients<T> head_weights_backward(const Array<T>& x, const Array<T>& weight, std::int64_t head_dim,
                                              const Array<T>& d_w) {
  if (d_w.size() == 0) return {Array<T>(x.shape), Array<T>(weight.shape)};
  ASSAY_CHECK(d_w.size() == x.dim(0) * weight.dim(0));
  const T per_head = inverse_root<T>(weight.dim(0)), per_channel = inverse_root<T>(head_dim);
  Array<T> d_product = d_w;
  for (T& value : d_product.data) value = value * per_channel * per_head;
  LinearGradients<T> g = product_backward(x, weight, d_product);
  for (T& value : g.d_x.data) value = round_at(point("head_weights.backward/d_x"), value);
  return {std::move(g.d_x), std::move(g.d_weight)};
}

template <class T>
IndexScoresGradients<T> index_scores_backward(const Array<T>& q, const Array<T>& pooled, const Array<T>& w,
                                              bool use_relu, std::optional<double> scale, const Array<T>& d_s) {
  const std::int64_t heads = q.dim(1), d = q.dim(2), pools = pooled.dim(0), rows = q.dim(0) * heads;
  IndexScoresGradients<T> result{Array<T>(q.shape), Array<T>(pooled.shape), Array<T>(w.shape)};
  if (d_s.size() == 0) return result;
  ASSAY_CHECK(d_s.size() == q.dim(0) * pools);
  Array<T> d_dots({pools, rows});
  parallel_for(rows, [&](std::int64_t row) {
    const T* cotangents = d_s.row(row / heads, pools);
    std::vector<T> terms(static_cast<std::size_t>(pools));
    for (std::int64_t p = 0; p < pools; ++p) {
      T value = dot(q.row(row, d), 1, pooled.row(p, d), 1, d), slope = cotangents[p] * w[row];
      if (scale) {
        value = value * constant<T>(*scale);
        slope = slope * constant<T>(*scale);
      }
      terms[static_cast<std::size_t>(p)] = use_relu ? relu(value) : value;
      d_dots.at(p, row) = use_relu ? T(slope * step(value)) : slope;
    }
    result.d_w[row] = dot(terms.data(), 1, cotangents, 1, pools);
    for (std::int64_t c = 0; c < d; ++c)
      result.d_q.row(row, d)[c] = round_at(point("index_scores.backward/d_q"), dot(&d_dots[row], rows, pooled.data.data() + c, d, pools));
  });
  parallel_for(pools * d, [&](std::int64_t i) {
    result.d_pooled[i] = round_at(point("index_scores.backward/d_pooled"), dot(d_dots.row(i / d, rows), 1, q.data.data() + i % d, d, rows));
  });
  return result;
}

template <class T>
void add_indexer_backward_ops(OpTable<T>& table) {
  table["kpool_compress.backward"] = [](const Call<T>& call) {
    KPoolGradients<T> g =
        kpool_compress_backward(call.in("k"), optional(call, "gate"), optional(call, "ape"), call.integer("kpool"),
                                call.has("cu_seqlens") ? call.index("cu_seqlens") : Index(), optional(call, "d_pooled"),
                                optional(call, "d_weights"), optional(call, "d_exp_of_score_minus_max"));
    Results<T> results{{"d_k", std::move(g.d_k)}};
    if (call.has("gate")) results["d_gate"] = std::move(g.d_gate);
    if (call.has("ape")) results["d_ape"] = std::move(g.d_ape);
    return results;
  };
  table["hadamard_fp8.backward"] = [](const Call<T>& call) {
    if (call.flag("quantize") && call.has("d_y"))
      throw InputError("hadamard_fp8.backward: d_y", "a gradient of quantised rows", "quantize = false");
    const Array<T> x = call.in("x");
    Array<T> sum;
    for (const char* operand : {"d_y", "d_rotated", "d_transformed"}) {
      if (!call.has(operand)) continue;
      const Array<T> part = call.in(operand);
      if (sum.size() == 0) {
        sum = part;
      } else {
        for (std::int64_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
    }
    return Results<T>{{"d_x", hadamard_backward(x, sum, call.flag("rotate"))}};
  };
  table["head_weights.backward"] = [](const Call<T>& call) {
    HeadWeightsGradients<T> g =
        head_weights_backward(call.in("x"), call.in("weight"), call.integer("head_dim"), optional(call, "d_w"));
    return Results<T>{{"d_x", std::move(g.d_x)}, {"d_weight", std::move(g.d_weight)}};
  };
  table["index_scores.backward"] = [](const Call<T>& call) {
    IndexScoresGradients<T> g = index_scores_backward(call.in("q"), call.in("pooled"), call.in("w"), call.flag("relu"),
                                                      call.optional_real("scale"), optional(call, "d_s"));
    return Results<T>{{"d_q", std::move(g.d_q)}, {"d_pooled", std::move(g.d_pooled)}, {"d_w", std::move(g.d_w)}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                           \
  template KPoolGradients<T> kpool_compress_backward(const Array<T>&, const Array<T>&, const Array<T>&, std::int64_t,  \
                                                     const Index&, const Array<T>&, const Array<T>&, const Array<T>&); \
  template Array<T> hadamard_backward(const Array<T>&, const Array<T>&, bool);                                         \
  template HeadWeightsGradients<T> head_weights_backward(const Array<T>&, const Array<T>&, std::int64_t,               \
                                                         const Array<T>&);                                             \
  template IndexScoresGradients<T> index_scores_backward(const Array<T>&, const Array<T>&, const Array<T>&, bool,      \
                                                         std::optional<double>, const Array<T>&);                      \
  template void add_indexer_backward_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
