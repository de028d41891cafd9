// The ops of the model on a tape: value by the forward formula, gradient by the explicit backward formula.
#pragma once

#include <optional>

#include "reference/model/tape.h"
#include "reference/ops/attention.h"
#include "reference/ops/mhc.h"
#include "reference/ops/router.h"

namespace assay::reference {

/// The operations that only move values.
template <class T>
struct Moves {
  static Var<T> reshaped(Tape<T>& tape, const Var<T>& x, Shape shape);
  /// Rows of the first dimension in the given order (repeats allowed).
  static Var<T> gathered(Tape<T>& tape, const Var<T>& x, std::vector<std::int64_t> rows);
  /// An array [count, width] whose row places[i] is row i of x; other rows are zero.
  static Var<T> placed(Tape<T>& tape, const Var<T>& x, std::vector<std::int64_t> places, std::int64_t count);
  /// Columns [begin, begin + count) of x seen as [rows, width].
  static Var<T> columns(Tape<T>& tape, const Var<T>& x, std::int64_t width, std::int64_t begin, std::int64_t count);
  /// [a | b] along the last dimension.
  static Var<T> beside(Tape<T>& tape, const Var<T>& a, const Var<T>& b);
  /// Sum of arrays of the same shape, not rounded (disjoint parts of one array).
  static Var<T> assembled(Tape<T>& tape, const std::vector<Var<T>>& parts);
  /// Rows with `keep` false become zero.
  static Var<T> masked(Tape<T>& tape, const Var<T>& x, std::vector<bool> keep);
};

template <class T>
struct MappingVars {
  Var<T> h_pre, h_post, h_res;
};

template <class T>
struct AttentionVars {
  Var<T> o, weights;
};

/// The ops of reference/ops under their names; the arguments are those of the typed functions there.
template <class T>
struct Graph {
  static Var<T> embed(Tape<T>& tape, const Index& ids, const Var<T>& table, std::optional<std::int64_t> padding_row);
  static Var<T> linear(Tape<T>& tape, const Var<T>& x, const Var<T>& weight, const Var<T>& bias = nullptr);
  /// x W^T kept in the compute format: no rounding to the activation dtype (the router).
  static Var<T> product(Tape<T>& tape, const Var<T>& x, const Var<T>& weight);
  static Var<T> rms_norm(Tape<T>& tape, const Var<T>& x, const Var<T>& weight, double eps);
  static Var<T> layer_norm(Tape<T>& tape, const Var<T>& x, const Var<T>& weight, const Var<T>& bias, double eps);
  static Var<T> gated_rms_norm(Tape<T>& tape, const Var<T>& o, const Var<T>& z, const Var<T>& weight, double eps);
  static Var<T> l2norm(Tape<T>& tape, const Var<T>& x, double eps);
  static Var<T> residual_add(Tape<T>& tape, const Var<T>& a, const Var<T>& b);
  static Var<T> swiglu(Tape<T>& tape, const Var<T>& gate, const Var<T>& up, std::optional<double> limit);

  static Var<T> stream_expand(Tape<T>& tape, const Var<T>& x, std::int64_t n);
  static MappingVars<T> mhc_mapping(Tape<T>& tape, const Var<T>& x, const Var<T>& weight, const Var<T>& alpha,
                                    const Var<T>& bias, const MappingOptions& options);
  static Var<T> mhc_aggregate(Tape<T>& tape, const Var<T>& x, const Var<T>& h_pre);
  static Var<T> mhc_mix(Tape<T>& tape, const Var<T>& residual, const Var<T>& branch, const Var<T>& h_post,
                        const Var<T>& h_res);
  static Var<T> contract_mean(Tape<T>& tape, const Var<T>& x);

  static Var<T> kda_conv(Tape<T>& tape, const Var<T>& u, const Var<T>& weight, const Index& cu_seqlens);
  static Var<T> kda_gate(Tape<T>& tape, const Var<T>& f, const Var<T>& A_log, const Var<T>& dt_bias,
                         std::optional<double> lower_bound);
  static Var<T> beta(Tape<T>& tape, const Var<T>& b);
  static Var<T> delta_rule(Tape<T>& tape, const Var<T>& q, const Var<T>& k, const Var<T>& v, const Var<T>& g,
                           const Var<T>& beta, const Index& cu_seqlens);

  static AttentionVars<T> mla_attention(Tape<T>& tape, const Var<T>& q, const Var<T>& k, const Var<T>& v,
                                        const Index& ids, const T& scale);

  /// Attention whose scores were all raised to the same masked value: uniform weights over the ids of a row, while the
  /// scores keep their derivatives (what adding the most negative number of a format does in transformers).
  static AttentionVars<T> uniform_attention(Tape<T>& tape, const Var<T>& q, const Var<T>& k, const Var<T>& v,
                                            const Index& ids, const T& scale);

  static Var<T> route_weights(Tape<T>& tape, const Var<T>& logits, const Index& experts, const RouterRule& rule);
  static Var<T> combine(Tape<T>& tape, const Var<T>& expert_out, const Var<T>& weights, const Var<T>& shared);

  /// Mean cross entropy over the labels that count, [1].
  static Var<T> cross_entropy_mean(Tape<T>& tape, const Var<T>& logits, const Index& labels, std::int64_t ignore_index);
  static Var<T> aux_loss(Tape<T>& tape, const Var<T>& logits, std::int64_t topk);
  /// a + factor * b, both [1]: the sum of losses.
  static Var<T> weighted_sum(Tape<T>& tape, const Var<T>& a, const Var<T>& b, double factor);

  static Var<T> rope_2d(Tape<T>& tape, const Var<T>& x, const Index& positions, double theta);
  static Var<T> segment_attention(Tape<T>& tape, const Var<T>& q, const Var<T>& k, const Var<T>& v,
                                  const Index& cu_seqlens, double scale);
  static Var<T> gelu(Tape<T>& tape, const Var<T>& x);
  static Var<T> downsample(Tape<T>& tape, const Var<T>& x, const Var<T>& weight, const Var<T>& bias);
  static Var<T> feature_scatter(Tape<T>& tape, const Var<T>& x, const Index& ids, std::int64_t token_id,
                                const Var<T>& features);
};

}  // namespace assay::reference
