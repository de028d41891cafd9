#include <cmath>

#include "reference/model/layers.h"
#include "reference/ops/vision.h"

namespace assay::reference {
namespace {

constexpr double kMergerNormEps = 1e-5;  // LayerNorm of the merger (model.md 14)

template <class T>
Var<T> with_bias(const Pass<T>& pass, const Weights& weights, const Var<T>& x, const std::string& name) {
  return Graph<T>::linear(pass.tape, x, pass.weight(weights, name + ".weight"), pass.weight(weights, name + ".bias"));
}

/// Bidirectional attention inside each frame, q and k normalised before the rotation.
template <class T>
Var<T> block_attention(const Pass<T>& pass, const VisionConfig& vision, const Weights& attention, const Var<T>& x,
                       const PatchPositions& patches) {
  using G = Graph<T>;
  using M = Moves<T>;
  Tape<T>& tape = pass.tape;
  const std::int64_t n = x->value.dim(0), heads = vision.num_heads, dim = vision.head_dim(), width = heads * dim;
  const Var<T> qkv = with_bias(pass, attention, x, "qkv");
  const auto third = [&](std::int64_t i) {
    return M::reshaped(tape, M::columns(tape, qkv, 3 * width, i * width, width), {n, heads, dim});
  };
  const auto turned = [&](const Var<T>& y, const std::string& norm) {
    const Var<T> normed = G::rms_norm(tape, y, pass.weight(attention, norm + ".weight"), vision.rms_norm_eps);
    return G::rope_2d(tape, normed, patches.positions, vision.rope_theta);
  };
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  const Var<T> o = G::segment_attention(tape, turned(third(0), "q_norm"), turned(third(1), "k_norm"), third(2),
                                        patches.cu_seqlens, scale);
  return with_bias(pass, attention, M::reshaped(tape, o, {n, width}), "proj");
}

}  // namespace

template <class T>
Var<T> vision_tower(const Pass<T>& pass, const Weights& visual, const VisionConfig& vision, const Array<T>& pixels,
                    const Index& grid) {
  using G = Graph<T>;
  Tape<T>& tape = pass.tape;
  const PatchPositions patches = patch_positions(grid, vision.spatial_merge_size);
  if (pixels.shape.size() != 2 || pixels.dim(1) != vision.patch_values() || pixels.dim(0) != patches.positions.dim(0)) {
    throw InputError("pixel_values", "shape " + assay::to_string(pixels.shape),
                     "[" + std::to_string(patches.positions.dim(0)) + ", " + std::to_string(vision.patch_values()) +
                         "] follows from image_grid_thw");
  }
  const Var<T> stored = pass.weight(visual, "patch_embed.proj.weight");
  const Var<T> weight = Moves<T>::reshaped(tape, stored, {stored->value.dim(0), vision.patch_values()});
  Var<T> x = G::linear(tape, tape.constant(pixels), weight, pass.weight(visual, "patch_embed.proj.bias"));
  const auto normed = [&](const Weights& weights, const Var<T>& y, const std::string& name) {
    return G::rms_norm(tape, y, pass.weight(weights, name + ".weight"), vision.rms_norm_eps);
  };
  for (std::int64_t b = 0; b < vision.depth; ++b) {
    const Weights block = visual.below("blocks." + std::to_string(b) + ".");
    x = G::residual_add(tape, x,
                        block_attention(pass, vision, block.below("attn."), normed(block, x, "norm1"), patches));
    const Var<T> out = swiglu_mlp(pass, block.below("mlp."), normed(block, x, "norm2"), vision.swiglu_limit);
    x = pass.stage("vision.blocks." + std::to_string(b) + ".out", G::residual_add(tape, x, out));
  }
  x = normed(visual, x, "post_layernorm");
  x = G::downsample(tape, x, pass.weight(visual, "downsample.weight"), pass.weight(visual, "downsample.bias"));
  const Weights merger = visual.below("merger.");
  x = G::layer_norm(tape, G::linear(tape, x, pass.weight(merger, "proj.weight")),
                    pass.weight(merger, "post_projection_norm.weight"),
                    pass.weight(merger, "post_projection_norm.bias"), kMergerNormEps);
  return pass.stage("vision.merger", swiglu_mlp(pass, merger, G::gelu(tape, x), vision.swiglu_limit));
}

#define ASSAY_INSTANTIATE(T) \
  template Var<T> vision_tower(const Pass<T>&, const Weights&, const VisionConfig&, const Array<T>&, const Index&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
