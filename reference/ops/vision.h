// The vision tower's own operations. Source: shared/spec/model.md 12.
#pragma once

#include "reference/call.h"

namespace assay::reference {

/// Linear map of flattened patches: x [N, P], weight [C, P], bias [C] or empty -> [N, C].
template <class T>
Array<T> patch_embed(const Array<T>& x, const Array<T>& weight, const Array<T>& bias);

/// Rotary embedding over rows and columns: inv_freq_k = theta^(-2k / (D/2)) for k < D/4; angles of a head are
/// [row * inv_freq, column * inv_freq] twice; pairs (i, i + D/2) are rotated. x [N, H, D], positions [N, 2] (row,
/// column) -> [N, H, D], one rounding. Throws InputError unless 4 divides D.
template <class T>
Array<T> rope_2d(const Array<T>& x, const Index& positions, double theta);

template <class T>
struct SegmentAttention {
  Array<T> o;    ///< [N, H, D]
  Array<T> lse;  ///< [N, H], log of the sum of exponentials of the scaled scores
};

/// softmax(scale q k^T) v over all patches of the query's segment: q, k, v [N, H, D], cu_seqlens [S] from 0 to N,
/// increasing (InputError). Probabilities and the output are rounded to the activation dtype.
template <class T>
SegmentAttention<T> segment_attention(const Array<T>& q, const Array<T>& k, const Array<T>& v, const Index& cu_seqlens,
                                      double scale);

/// x/2 (1 + erf(x / sqrt 2)), one rounding.
template <class T>
Array<T> gelu(const Array<T>& x);

/// An s x s convolution of stride s over each group of s*s consecutive patches (row by row): x [M*s*s, C], weight
/// [O, C, s, s], bias [O] or empty -> [M, O], one rounding. Throws InputError for a partial group.
template <class T>
Array<T> downsample(const Array<T>& x, const Array<T>& weight, const Array<T>& bias);

/// Rows of placeholder tokens replaced by features, in order: x [T, C], ids [T], features [F, C] -> [T, C]. Features
/// are rounded to the activation dtype. Throws InputError unless F tokens have the id.
template <class T>
Array<T> feature_scatter(const Array<T>& x, const Index& ids, std::int64_t token_id, const Array<T>& features);

struct PatchPositions {
  Index positions;   ///< [N, 2], row and column of each patch
  Index cu_seqlens;  ///< boundaries of the frames in patches, [frames + 1]
};

/// Patches of images [images, 3] (frames, rows, columns of patches): in each frame blocks of merge x merge patches row
/// by row, row by row inside a block; every frame is a segment. Throws InputError unless merge divides rows and
/// columns.
PatchPositions patch_positions(const Index& grid_thw, std::int64_t merge);

template <class T>
void add_vision_ops(OpTable<T>& table);

}  // namespace assay::reference
