#include "reference/ops/vision_backward.h"

#include <algorithm>
#include <numbers>
#include <string>
#include <type_traits>

#include "reference/ops/layout.h"
#include "reference/ops/vision.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

template <class T>
Array<T> optional(const Call<T>& call, const char* operand) {
  return call.has(operand) ? call.in(operand) : Array<T>();
}

template <class T>
T pi() {
  if constexpr (std::is_same_v<T, Real>) {
    Real result;
    mpfr_const_pi(result.backend().data(), MPFR_RNDN);
    return result;
  } else if constexpr (std::is_same_v<T, Ball>) {
    Ball result;
    arb_const_pi(result.data(), context().bits);
    return result;
  } else {
    return constant<T>(std::numbers::pi);
  }
}

/// (group, channel, place) of x [M*places, C] <-> [M, C*places], the order of a kernel's inputs.
template <class T>
Array<T> gathered(const Array<T>& x, std::int64_t places) {
  const std::int64_t groups = x.dim(0) / places, channels = x.dim(1);
  Array<T> result({groups, channels * places});
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t p = 0; p < places; ++p) result.at(g, c * places + p) = x.at(g * places + p, c);
  return result;
}

template <class T>
Array<T> scattered(const Array<T>& rows, std::int64_t places) {
  const std::int64_t groups = rows.dim(0), channels = rows.dim(1) / places;
  Array<T> result({groups * places, channels});
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t p = 0; p < places; ++p) result.at(g * places + p, c) = rows.at(g, c * places + p);
  return result;
}

/// The patches of each patch's segment, as ids of a selection.
Index segment_ids(const Index& cu_seqlens, std::int64_t tokens) {
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s + 1 < cu_seqlens.size(); ++s)
    longest = std::max(longest, cu_seqlens[s + 1] - cu_seqlens[s]);
  Index ids({tokens, longest});
  std::fill(ids.data.begin(), ids.data.end(), -1);
  for (std::int64_t s = 0; s + 1 < cu_seqlens.size(); ++s)
    for (std::int64_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; ++t)
      for (std::int64_t i = cu_seqlens[s]; i < cu_seqlens[s + 1]; ++i) ids.at(t, i - cu_seqlens[s]) = i;
  return ids;
}

template <class T>
Results<T> results_of(LinearGradients<T> g, bool has_bias) {
  Results<T> results{{"d_x", std::move(g.d_x)}, {"d_weight", std::move(g.d_weight)}};
  if (has_bias) results["d_bias"] = std::move(g.d_bias);
  return results;
}

}  // namespace

template <class T>
LinearGradients<T> patch_embed_backward(const Array<T>& x, const Array<T>& weight, bool has_bias, const Array<T>& dy) {
  return linear_backward(x, weight, has_bias, dy);
}

template <class T>
Array<T> rope_2d_backward(const Array<T>& x, const Index& positions, double theta, const Array<T>& dy) {
  if (dy.size() == 0) return Array<T>(x.shape);
  ASSAY_CHECK(dy.size() == x.size());
  // The transpose of a rotation is the rotation by the opposite angle.
  Index opposite = positions;
  for (std::int64_t& position : opposite.data) position = -position;
  return rope_2d(dy, opposite, theta);
}

template <class T>
AttentionGradients<T> segment_attention_backward(const Array<T>& q, const Array<T>& k, const Array<T>& v,
                                                 const Index& cu_seqlens, double scale, const Array<T>& d_o,
                                                 const Array<T>& d_lse) {
  check_boundaries(cu_seqlens, q.dim(0), "cu_seqlens", Empty::kRefused);
  return mla_attention_backward(q, k, v, segment_ids(cu_seqlens, q.dim(0)), constant<T>(scale), d_o, Array<T>(), d_lse);
}

template <class T>
Array<T> gelu_backward(const Array<T>& x, const Array<T>& dy) {
  if (dy.size() == 0) return Array<T>(x.shape);
  ASSAY_CHECK(dy.size() == x.size());
  const T root = inverse_root<T>(2), half(0.5), one(1.0), density_factor = rsqrt(T(T(2.0) * pi<T>()));
  Array<T> d_x(x.shape);
  parallel_for(x.size(), [&](std::int64_t i) {
    const T density = exp(T(-(half * x[i] * x[i]))) * density_factor;
    d_x[i] = round_at(point("gelu.backward/d_x"), T(dy[i] * (half * (one + erf(T(x[i] * root))) + x[i] * density)));
  });
  return d_x;
}

template <class T>
LinearGradients<T> downsample_backward(const Array<T>& x, const Array<T>& weight, bool has_bias, const Array<T>& dy) {
  const std::int64_t outputs = weight.dim(0), places = weight.dim(2) * weight.dim(3);
  if (x.dim(0) % places != 0)
    throw InputError("downsample: x", std::to_string(x.dim(0)) + " rows", "a multiple of " + std::to_string(places));
  LinearGradients<T> result =
      linear_backward(gathered(x, places), weight.reshaped({outputs, weight.dim(1) * places}), has_bias, dy);
  result.d_x = scattered(result.d_x, places);
  result.d_weight = std::move(result.d_weight).reshaped(weight.shape);
  return result;
}

template <class T>
FeatureScatterGradients<T> feature_scatter_backward(const Array<T>& x, const Index& ids, std::int64_t token_id,
                                                    const Array<T>& features, const Array<T>& dy) {
  const std::int64_t width = x.dim(1), count = features.dim(0);
  const auto placeholders = std::count(ids.data.begin(), ids.data.end(), token_id);
  if (placeholders != count)
    throw InputError("feature_scatter: features", std::to_string(count) + " rows",
                     std::to_string(placeholders) + ", as many as tokens " + std::to_string(token_id));
  FeatureScatterGradients<T> result{Array<T>(x.shape), Array<T>(features.shape)};
  if (dy.size() == 0) return result;
  ASSAY_CHECK(dy.size() == x.size());
  std::int64_t next = 0;
  for (std::int64_t t = 0; t < ids.size(); ++t)
    std::copy_n(dy.row(t, width), width,
                ids[t] == token_id ? result.d_features.row(next++, width) : result.d_x.row(t, width));
  return result;
}

template <class T>
void add_vision_backward_ops(OpTable<T>& table) {
  table["patch_embed.backward"] = [](const Call<T>& call) {
    const bool has_bias = call.has("bias");
    return results_of(patch_embed_backward(call.in("x"), call.in("weight"), has_bias, optional(call, "d_y")), has_bias);
  };
  table["rope_2d.backward"] = [](const Call<T>& call) {
    return Results<T>{
        {"d_x", rope_2d_backward(call.in("x"), call.index("positions"), call.real("theta"), optional(call, "d_y"))}};
  };
  table["segment_attention.backward"] = [](const Call<T>& call) {
    AttentionGradients<T> g =
        segment_attention_backward(call.in("q"), call.in("k"), call.in("v"), call.index("cu_seqlens"),
                                   call.real("scale"), optional(call, "d_o"), optional(call, "d_lse"));
    return Results<T>{{"d_q", std::move(g.d_q)}, {"d_k", std::move(g.d_k)}, {"d_v", std::move(g.d_v)}};
  };
  table["gelu.backward"] = [](const Call<T>& call) {
    return Results<T>{{"d_x", gelu_backward(call.in("x"), optional(call, "d_y"))}};
  };
  table["downsample.backward"] = [](const Call<T>& call) {
    const bool has_bias = call.has("bias");
    return results_of(downsample_backward(call.in("x"), call.in("weight"), has_bias, optional(call, "d_y")), has_bias);
  };
  table["feature_scatter.backward"] = [](const Call<T>& call) {
    FeatureScatterGradients<T> g = feature_scatter_backward(call.in("x"), call.index("ids"), call.integer("token_id"),
                                                            call.in("features"), optional(call, "d_y"));
    return Results<T>{{"d_x", std::move(g.d_x)}, {"d_features", std::move(g.d_features)}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                         \
  template LinearGradients<T> patch_embed_backward(const Array<T>&, const Array<T>&, bool, const Array<T>&);         \
  template Array<T> rope_2d_backward(const Array<T>&, const Index&, double, const Array<T>&);                        \
  template AttentionGradients<T> segment_attention_backward(const Array<T>&, const Array<T>&, const Array<T>&,       \
                                                            const Index&, double, const Array<T>&, const Array<T>&); \
  template Array<T> gelu_backward(const Array<T>&, const Array<T>&);                                                 \
  template LinearGradients<T> downsample_backward(const Array<T>&, const Array<T>&, bool, const Array<T>&);          \
  template FeatureScatterGradients<T> feature_scatter_backward(const Array<T>&, const Index&, std::int64_t,          \
                                                               const Array<T>&, const Array<T>&);                    \
  template void add_vision_backward_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
