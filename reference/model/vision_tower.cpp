#include <algorithm>

#include "reference/model/layers.h"
#include "reference/ops/linear.h"
#include "reference/ops/norm.h"
#include "reference/ops/vision.h"

namespace assay::reference {
namespace {

constexpr double kMergerNormEps = 1e-5;  // LayerNorm of the merger (model.md 14)

template <class T>
Array<T> with_bias(const Weights& weights, const Array<T>& x, const std::string& name) {
  return linear(x, weights.get<T>(name + ".weight"), weights.get<T>(name + ".bias"));
}

/// Bidirectional attention inside each frame, q and k normalised before the rotation.
template <class T>
Array<T> block_attention(const VisionConfig& vision, const Weights& attention, const Array<T>& x,
                         const PatchPositions& patches) {
  const std::int64_t n = x.dim(0), heads = vision.num_heads, dim = vision.head_dim(), width = heads * dim;
  const Array<T> qkv = with_bias(attention, x, "qkv");
  Array<T> q({n, heads, dim}), k = q, v = q;
  for (std::int64_t i = 0; i < n; ++i) {
    const T* row = qkv.row(i, 3 * width);
    std::copy(row, row + width, q.row(i, width));
    std::copy(row + width, row + 2 * width, k.row(i, width));
    std::copy(row + 2 * width, row + 3 * width, v.row(i, width));
  }
  const auto turned = [&](const Array<T>& y, const std::string& norm) {
    return rope_2d(rms_norm(y, attention.get<T>(norm + ".weight"), vision.rms_norm_eps), patches.positions,
                   vision.rope_theta);
  };
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  const Array<T> o = segment_attention(turned(q, "q_norm"), turned(k, "k_norm"), v, patches.cu_seqlens, scale).o;
  return with_bias(attention, o.reshaped({n, width}), "proj");
}

template <class T>
Array<T> sum(const Array<T>& a, const Array<T>& b) {
  Array<T> y(a.shape);
  for (std::int64_t i = 0; i < a.size(); ++i) y[i] = round_activation(a[i] + b[i]);
  return y;
}

}  // namespace

template <class T>
Array<T> vision_tower(const Pass<T>& pass, const Weights& visual, const VisionConfig& vision, const Array<T>& pixels,
                      const Index& grid) {
  const PatchPositions patches = patch_positions(grid, vision.spatial_merge_size);
  if (pixels.shape.size() != 2 || pixels.dim(1) != vision.patch_values() || pixels.dim(0) != patches.positions.dim(0)) {
    throw InputError("pixel_values", "shape " + assay::to_string(pixels.shape),
                     "[" + std::to_string(patches.positions.dim(0)) + ", " + std::to_string(vision.patch_values()) +
                         "] follows from image_grid_thw");
  }
  Array<T> weight = visual.get<T>("patch_embed.proj.weight");
  weight.shape = {weight.dim(0), vision.patch_values()};
  Array<T> x = patch_embed(pixels, weight, visual.get<T>("patch_embed.proj.bias"));
  for (std::int64_t b = 0; b < vision.depth; ++b) {
    const Weights block = visual.below("blocks." + std::to_string(b) + ".");
    const Array<T> a = rms_norm(x, block.get<T>("norm1.weight"), vision.rms_norm_eps);
    x = sum(x, block_attention(vision, block.below("attn."), a, patches));
    const Array<T> m = rms_norm(x, block.get<T>("norm2.weight"), vision.rms_norm_eps);
    x = pass.stage("vision.blocks." + std::to_string(b) + ".out",
                   sum(x, swiglu_mlp(block.below("mlp."), m, vision.swiglu_limit)));
  }
  x = rms_norm(x, visual.get<T>("post_layernorm.weight"), vision.rms_norm_eps);
  x = downsample(x, visual.get<T>("downsample.weight"), visual.get<T>("downsample.bias"));
  const Weights merger = visual.below("merger.");
  x = layer_norm(linear(x, merger.get<T>("proj.weight")), merger.get<T>("post_projection_norm.weight"),
                 merger.get<T>("post_projection_norm.bias"), kMergerNormEps);
  return pass.stage("vision.merger", swiglu_mlp(merger, gelu(x), vision.swiglu_limit));
}

#define ASSAY_INSTANTIATE(T) \
  template Array<T> vision_tower(const Pass<T>&, const Weights&, const VisionConfig&, const Array<T>&, const Index&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
