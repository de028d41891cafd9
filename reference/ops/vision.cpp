#include "reference/ops/vision.h"

#include <algorithm>

#include "reference/ops/layout.h"
#include "reference/ops/linear.h"
#include "reference/parallel.h"

namespace assay::reference {

template <class T>
Array<T> patch_embed(const Array<T>& x, const Array<T>& weight, const Array<T>& bias) {
  return linear(x, weight, bias);
}

template <class T>
Array<T> rope_2d(const Array<T>& x, const Index& positions, double theta) {
  const std::int64_t heads = x.dim(1), width = x.dim(2), quarter = width / 4, half = width / 2;
  if (width % 4 != 0) throw InputError("rope_2d: x", "a head size of " + std::to_string(width), "a multiple of 4");
  std::vector<T> inverse_frequency;
  for (std::int64_t k = 0; k < quarter; ++k)
    inverse_frequency.push_back(pow(T(theta), T(static_cast<double>(-2 * k)) / T(static_cast<double>(half))));
  Array<T> y(x.shape);
  parallel_for(x.dim(0), [&](std::int64_t t) {
    for (std::int64_t i = 0; i < half; ++i) {
      const auto position = static_cast<double>(positions.at(t, i < quarter ? 0 : 1));
      const T angle = T(position) * inverse_frequency[static_cast<std::size_t>(i % quarter)];
      const T c = cos(angle), s = sin(angle);
      for (std::int64_t h = 0; h < heads; ++h) {
        const T &a = x.at(t, h, i), &b = x.at(t, h, i + half);
        y.at(t, h, i) = round_at(point("rope_2d/y"), a * c - b * s);
        y.at(t, h, i + half) = round_at(point("rope_2d/y"), b * c + a * s);
      }
    }
  });
  return y;
}

template <class T>
SegmentAttention<T> segment_attention(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Index& cu_seqlens,
                                      double scale) {
  const std::int64_t tokens = q.dim(0), heads = q.dim(1), width = q.dim(2), row = heads * width;
  check_boundaries(cu_seqlens, tokens, "cu_seqlens", Empty::kRefused);
  std::vector<std::int64_t> segment(static_cast<std::size_t>(tokens));
  for (std::int64_t s = 0; s + 1 < cu_seqlens.size(); ++s)
    for (std::int64_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; ++t) segment[static_cast<std::size_t>(t)] = s;
  SegmentAttention<T> result{Array<T>(q.shape), Array<T>({tokens, heads})};
  parallel_for(tokens * heads, [&](std::int64_t i) {
    const std::int64_t h = i % heads, s = segment[static_cast<std::size_t>(i / heads)];
    const std::int64_t first = cu_seqlens[s], count = cu_seqlens[s + 1] - first;
    std::vector<T> power(static_cast<std::size_t>(count));
    double largest = 0.0;
    for (std::int64_t j = 0; j < count; ++j) {
      T& score = power[static_cast<std::size_t>(j)];
      score = dot(q.row(i, width), 1, k.row((first + j) * heads + h, width), 1, width) * constant<T>(scale);
      largest = j == 0 ? midpoint(score) : std::max(largest, midpoint(score));
    }
    for (T& p : power) p = exp(p - T(largest));
    const T one(1.0);
    const T total = dot(power.data(), 1, &one, 0, count);
    result.lse[i] = log(total) + T(largest);
    for (T& p : power) p = round_at(point("segment_attention/p"), p);
    const T* values = v.row(first * heads + h, width);
    for (std::int64_t d = 0; d < width; ++d)
      result.o[i * width + d] = round_at(point("segment_attention/o"), dot(power.data(), 1, values + d, row, count) / total);
  });
  return result;
}

template <class T>
Array<T> gelu(const Array<T>& x) {
  const T root = inverse_root<T>(2), half(0.5), one(1.0);
  Array<T> y(x.shape);
  for (std::int64_t i = 0; i < x.size(); ++i) y[i] = round_at(point("gelu/y"), half * x[i] * (one + erf(x[i] * root)));
  return y;
}

template <class T>
Array<T> downsample(const Array<T>& x, const Array<T>& weight, const Array<T>& bias) {
  const std::int64_t outputs = weight.dim(0), channels = weight.dim(1), places = weight.dim(2) * weight.dim(3);
  if (x.dim(0) % places != 0)
    throw InputError("downsample: x", std::to_string(x.dim(0)) + " rows", "a multiple of " + std::to_string(places));
  const std::int64_t groups = x.dim(0) / places;
  Array<T> gathered({groups, channels * places});
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t p = 0; p < places; ++p) gathered.at(g, c * places + p) = x.at(g * places + p, c);
  return linear(gathered, weight.reshaped({outputs, channels * places}), bias);
}

template <class T>
Array<T> feature_scatter(const Array<T>& x, const Index& ids, std::int64_t token_id, const Array<T>& features) {
  const std::int64_t width = x.dim(1), count = features.dim(0);
  const auto placeholders = std::count(ids.data.begin(), ids.data.end(), token_id);
  if (placeholders != count)
    throw InputError("feature_scatter: features", std::to_string(count) + " rows",
                     std::to_string(placeholders) + ", as many as tokens " + std::to_string(token_id));
  Array<T> y = x;
  std::int64_t next = 0;
  for (std::int64_t t = 0; t < ids.size(); ++t) {
    if (ids[t] != token_id) continue;
    for (std::int64_t c = 0; c < width; ++c) y.at(t, c) = round_at(point("feature_scatter/y"), features.at(next, c));
    ++next;
  }
  return y;
}

PatchPositions patch_positions(const Index& grid_thw, std::int64_t merge) {
  std::vector<std::int64_t> positions, boundaries{0};
  for (std::int64_t image = 0; image < grid_thw.dim(0); ++image) {
    const std::int64_t frames = grid_thw.at(image, 0), rows = grid_thw.at(image, 1), columns = grid_thw.at(image, 2);
    if (frames < 1 || rows < 1 || columns < 1 || rows % merge != 0 || columns % merge != 0)
      throw InputError("grid_thw[" + std::to_string(image) + "]", assay::to_string(Shape{frames, rows, columns}),
                       "positive, rows and columns multiples of " + std::to_string(merge));
    for (std::int64_t frame = 0; frame < frames; ++frame) {
      for (std::int64_t block = 0; block < rows * columns / (merge * merge); ++block)
        for (std::int64_t place = 0; place < merge * merge; ++place) {
          positions.push_back(block / (columns / merge) * merge + place / merge);
          positions.push_back(block % (columns / merge) * merge + place % merge);
        }
      boundaries.push_back(boundaries.back() + rows * columns);
    }
  }
  const auto patches = static_cast<std::int64_t>(positions.size()) / 2;
  const auto ends = static_cast<std::int64_t>(boundaries.size());
  return {Index({patches, 2}, std::move(positions)), Index({ends}, std::move(boundaries))};
}

template <class T>
void add_vision_ops(OpTable<T>& table) {
  table["patch_embed"] = [](const Call<T>& call) {
    const Array<T> bias = call.has("bias") ? call.in("bias") : Array<T>();
    return Results<T>{{"y", patch_embed(call.in("x"), call.in("weight"), bias)}};
  };
  table["rope_2d"] = [](const Call<T>& call) {
    return Results<T>{{"y", rope_2d(call.in("x"), call.index("positions"), call.real("theta"))}};
  };
  table["segment_attention"] = [](const Call<T>& call) {
    SegmentAttention<T> result =
        segment_attention(call.in("q"), call.in("k"), call.in("v"), call.index("cu_seqlens"), call.real("scale"));
    return Results<T>{{"o", std::move(result.o)}, {"lse", std::move(result.lse)}};
  };
  table["gelu"] = [](const Call<T>& call) { return Results<T>{{"y", gelu(call.in("x"))}}; };
  table["downsample"] = [](const Call<T>& call) {
    const Array<T> bias = call.has("bias") ? call.in("bias") : Array<T>();
    return Results<T>{{"y", downsample(call.in("x"), call.in("weight"), bias)}};
  };
  table["feature_scatter"] = [](const Call<T>& call) {
    return Results<T>{
        {"y", feature_scatter(call.in("x"), call.index("ids"), call.integer("token_id"), call.in("features"))}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                      \
  template Array<T> patch_embed(const Array<T>&, const Array<T>&, const Array<T>&);                               \
  template Array<T> rope_2d(const Array<T>&, const Index&, double);                                               \
  template SegmentAttention<T> segment_attention(const Array<T>&, const Array<T>&, const Array<T>&, const Index&, \
                                                 double);                                                         \
  template Array<T> gelu(const Array<T>&);                                                                        \
  template Array<T> downsample(const Array<T>&, const Array<T>&, const Array<T>&);                                \
  template Array<T> feature_scatter(const Array<T>&, const Index&, std::int64_t, const Array<T>&);                \
  template void add_vision_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
