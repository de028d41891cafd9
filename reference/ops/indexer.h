// The KPool indexer up to its scores: pool keys, rotated FP8 operands, head weights, scores. The selection is in
// reference/ops/select.h. Sources: shared/spec/model.md 7.2; megatron.md 3.2 to 3.5.
#pragma once

#include <optional>

#include "reference/call.h"

namespace assay::reference {

/// Where the pool keys are rounded to the activation dtype (matters for Bound only).
enum class PoolRounding {
  kNone,  ///< nowhere: the value before the store
  kOnce,  ///< the result, once
  kHf,    ///< softmax weights, products and sum
};

template <class T>
struct KPool {
  Array<T> pooled;                  ///< [P, D]
  Index first_token;                ///< [P]
  Array<T> weights;                 ///< [P, kpool, D] softmax over the slots of each channel
  Array<T> exp_of_score_minus_max;  ///< [P, kpool, D] the exponentials before their division
};

/// pooled[p, d] = sum_s pi_{s,d} k[first + s, d] with pi = softmax over the kpool slots of gate + ape, per channel.
/// k [T, D]; gate [T, D] and ape [kpool, D] are 0 when empty; cu_seqlens [documents + 1] is one document when empty.
/// Pools are complete, never cross a document and restart in each; tokens before cu_seqlens[0] (left padding) are in no
/// document. Throws InputError for cu_seqlens that decrease or do not end at T, and for kpool < 1.
template <class T>
KPool<T> kpool_compress(const Array<T>& k, const Array<T>& gate, const Array<T>& ape, std::int64_t kpool,
                        const Index& cu_seqlens, PoolRounding rounding = PoolRounding::kNone);

template <class T>
struct HadamardFp8 {
  Array<T> y;            ///< [..., D] decoded codes times scale; rotated if not quantised
  Array<T> transformed;  ///< [..., D] before its rounding to bf16
  Array<T> amax;         ///< [..., 1] largest magnitude of a rotated row, at least amax_floor; empty if not quantised
  Array<T> rotated;      ///< [..., D] after the transform and its one rounding to bf16
  Array<T> scale;        ///< [..., 1] 2^ceil(log2(max(amax, amax_floor) / 448)); empty if not quantised
  Index codes;           ///< [..., D] E4M3 bytes; empty if not quantised
};

/// x [..., D], D a power of two: rotated = bf16(D^-1/2 H x) with H in natural (Sylvester) order, then E4M3 saturating
/// with a power-of-two scale per row. Everything after the rounding to bf16 is exact. With T = Bound the errors cover
/// each code and scale that an implementation may choose. Throws InputError for a D that is not a power of two.
template <class T>
HadamardFp8<T> hadamard_fp8(const Array<T>& x, bool quantize, double amax_floor, bool rotate = true);

/// 2^ceil(log2(max(amax, amax_floor) / 448)) of given row maxima, exactly; with Bound the scales that an implementation
/// may give whose quotient and logarithm are rounded.
template <class T>
Array<T> fp8_row_scale(const Array<T>& amax, double amax_floor);

/// w[t, h] = (x[t] . weight[h]) Hi^-1/2 head_dim^-1/2: x [T, C], weight [Hi, C] -> [T, Hi].
template <class T>
Array<T> head_weights(const Array<T>& x, const Array<T>& weight, std::int64_t head_dim);

/// s[t, p] = sum_h w[t, h] relu(scale q[t, h] . pooled[p]): q [T, Hi, D], pooled [P, D], w [T, Hi] -> [T, P]. No scale:
/// 1 (Megatron has it in w). relu false: the dots themselves.
template <class T>
Array<T> index_scores(const Array<T>& q, const Array<T>& pooled, const Array<T>& w, bool use_relu,
                      std::optional<double> scale);

/// One element s[t, p] of index_scores at context().bits: the score of a decision that may raise the precision.
template <class T>
T index_score(const Array<T>& q, const Array<T>& pooled, const Array<T>& w, std::int64_t t, std::int64_t p,
              bool use_relu, std::optional<double> scale);

template <class T>
void add_indexer_ops(OpTable<T>& table);

}  // namespace assay::reference
