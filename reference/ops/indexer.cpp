#include "reference/ops/indexer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include "reference/linear_algebra.h"
#include "reference/ops/documents.h"
#include "reference/ops/select.h"
#include "reference/parallel.h"
#include "reference/round_once.h"

namespace assay::reference {
namespace {

/// First tokens of the complete pools of all documents.
Index pool_starts(const Index& cu_seqlens, std::int64_t tokens, std::int64_t kpool) {
  std::vector<Document> documents;
  if (cu_seqlens.size() > 0 && cu_seqlens[0] > 0) {
    // Left padding: the stretch before the first document is a document that has no pools.
    Index from_zero({cu_seqlens.size() + 1});
    std::copy(cu_seqlens.data.begin(), cu_seqlens.data.end(), from_zero.data.begin() + 1);
    documents = documents_of(from_zero, tokens);
    documents.erase(documents.begin());
  } else {
    documents = documents_of(cu_seqlens, tokens);
  }
  std::vector<std::int64_t> starts;
  for (const Document& document : documents)
    for (std::int64_t first = document.begin; first + kpool <= document.end; first += kpool) starts.push_back(first);
  return Index({static_cast<std::int64_t>(starts.size())}, starts);
}

/// The slot with the largest midpoint.
template <class T>
std::size_t largest(const std::vector<T>& values) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i)
    if (midpoint(values[i]) > midpoint(values[best])) best = i;
  return best;
}

/// D^-1/2, exact when D is a power of four.
template <class T>
T orthonormal_factor(std::int64_t d) {
  const int log2_d = std::countr_zero(static_cast<std::uint64_t>(d));
  const T even_part(std::ldexp(1.0, -(log2_d / 2)));
  return log2_d % 2 == 0 ? even_part : even_part * inverse_root<T>(2);
}

/// Row i, column j of the natural-ordered Hadamard matrix is (-1)^popcount(i & j).
template <class T>
Array<T> hadamard_signs(std::int64_t d) {
  Array<T> signs({d, d});
  for (std::int64_t i = 0; i < d; ++i)
    for (std::int64_t j = 0; j < d; ++j)
      signs.at(i, j) = T(std::popcount(static_cast<std::uint64_t>(i & j)) % 2 == 0 ? 1.0 : -1.0);
  return signs;
}

/// 2^ceil(log2(amax / 448)), exactly: the smallest power of two n with amax <= 448 n.
double power_of_two_scale(double amax, double amax_floor) {
  const double largest_code = e4m3().max_finite;
  int exponent = 0, code_exponent = 0;
  const double mantissa = std::frexp(std::max(amax, amax_floor), &exponent);
  const double code_mantissa = std::frexp(largest_code, &code_exponent);
  return std::ldexp(1.0, exponent - code_exponent + (mantissa > code_mantissa ? 1 : 0));
}

double quantised(double value, double scale) { return rounded(e4m3(), value / scale, Overflow::kSaturate) * scale; }

/// The quantised value under the chosen scale, between the ends over both scales an implementation may have chosen.
RoundedRange quantised(const RoundedRange& rotated, const RoundedRange& scale) {
  return {quantised(rotated.value, scale.value),
          std::min(quantised(rotated.low, scale.low), quantised(rotated.low, scale.high)),
          std::max(quantised(rotated.high, scale.low), quantised(rotated.high, scale.high))};
}

/// Magnitudes that a value of the range may have.
RoundedRange magnitude(const RoundedRange& x) {
  const double low = std::abs(x.low), high = std::abs(x.high);
  const bool spans_zero = x.low < 0.0 && x.high > 0.0;
  return {std::abs(x.value), spans_zero ? 0.0 : std::min(low, high), std::max(low, high)};
}

}  // namespace

template <class T>
KPool<T> kpool_compress(const Array<T>& k, const Array<T>& gate, const Array<T>& ape, std::int64_t kpool,
                        const Index& cu_seqlens, PoolRounding rounding) {
  if (kpool < 1) throw InputError("kpool", std::to_string(kpool), "at least 1");
  const std::int64_t d = k.dim(1);
  KPool<T> result;
  result.first_token = pool_starts(cu_seqlens, k.dim(0), kpool);
  const std::int64_t pools = result.first_token.size();
  result.pooled = Array<T>({pools, d});
  result.weights = Array<T>({pools, kpool, d});
  result.exp_of_score_minus_max = Array<T>({pools, kpool, d});
  const std::vector<T> ones(static_cast<std::size_t>(kpool), T(1.0));
  parallel_for(pools, [&](std::int64_t p) {
    const std::int64_t first = result.first_token[p];
    std::vector<T> score(static_cast<std::size_t>(kpool)), power(score.size()), product(score.size());
    for (std::int64_t c = 0; c < d; ++c) {
      for (std::int64_t s = 0; s < kpool; ++s) {
        T z(0.0);
        if (gate.size() && ape.size()) {
          z = gate.at(first + s, c) + ape.at(s, c);
        } else if (gate.size()) {
          z = gate.at(first + s, c);
        } else if (ape.size()) {
          z = ape.at(s, c);
        }
        score[static_cast<std::size_t>(s)] = z;
      }
      // The softmax does not depend on the shift: an exact number keeps the slots independent of each other.
      const std::size_t top = largest(score);
      const T shift(midpoint(score[top]));
      for (std::size_t s = 0; s < score.size(); ++s) power[s] = exp(score[s] - shift);
      const T sum = dot(power.data(), 1, ones.data(), 1, kpool);
      for (std::int64_t s = 0; s < kpool; ++s) {
        const auto slot = static_cast<std::size_t>(s);
        const T weight = power[slot] / sum;
        result.weights.at(p, s, c) = rounding == PoolRounding::kHf ? round_at(point("kpool_compress/weights"), weight) : weight;
        result.exp_of_score_minus_max.at(p, s, c) = exp(score[slot] - score[top]);
        if (rounding == PoolRounding::kHf)
          product[slot] = round_at(point("kpool_compress/products"), T(result.weights.at(p, s, c) * k.at(first + s, c)));
      }
      const T sum_of_products = rounding == PoolRounding::kHf
                                    ? dot(product.data(), 1, ones.data(), 1, kpool)
                                    : T(dot(power.data(), 1, k.data.data() + first * d + c, d, kpool) / sum);
      result.pooled.at(p, c) = rounding == PoolRounding::kNone ? sum_of_products : round_at(point("kpool_compress/pooled"), sum_of_products);
    }
  });
  return result;
}

template <class T>
HadamardFp8<T> hadamard_fp8(const Array<T>& x, bool quantize, double amax_floor, bool rotate) {
  const std::int64_t d = x.dim(-1);
  if (d < 1 || !std::has_single_bit(static_cast<std::uint64_t>(d)))
    throw InputError("x", "rows of " + std::to_string(d), "a power of two");
  const std::int64_t rows = x.size() / d;
  const T factor = orthonormal_factor<T>(d);
  const Array<T> signs = hadamard_signs<T>(d);
  HadamardFp8<T> result;
  result.transformed = Array<T>(x.shape);
  result.rotated = Array<T>(x.shape);
  result.y = Array<T>(x.shape);
  if (quantize) {
    Shape scale_shape = x.shape;
    scale_shape.back() = 1;
    result.scale = Array<T>(scale_shape);
    result.amax = Array<T>(scale_shape);
    result.codes = Index(x.shape);
  }
  parallel_for(rows, [&](std::int64_t row) {
    std::vector<RoundedRange> rotated(static_cast<std::size_t>(d));
    RoundedRange amax;
    for (std::int64_t i = 0; i < d; ++i) {
      T& transformed = result.transformed.row(row, d)[i];
      transformed = rotate ? T(dot(x.row(row, d), 1, signs.row(i, d), 1, d) * factor) : x.row(row, d)[i];
      RoundedRange& value = rotated[static_cast<std::size_t>(i)];
      value = round_range(bf16(), transformed, Overflow::kSpecial);
      result.rotated.row(row, d)[i] = from_range<T>(value);
      const RoundedRange size = magnitude(value);
      amax = {std::max(amax.value, size.value), std::max(amax.low, size.low), std::max(amax.high, size.high)};
    }
    if (!quantize) {
      std::copy_n(result.rotated.row(row, d), d, result.y.row(row, d));
      return;
    }
    result.amax[row] = from_range<T>(
        {std::max(amax.value, amax_floor), std::max(amax.low, amax_floor), std::max(amax.high, amax_floor)});
    const RoundedRange scale = {power_of_two_scale(amax.value, amax_floor), power_of_two_scale(amax.low, amax_floor),
                                power_of_two_scale(amax.high, amax_floor)};
    result.scale[row] = from_range<T>(scale);
    for (std::int64_t i = 0; i < d; ++i) {
      const RoundedRange& value = rotated[static_cast<std::size_t>(i)];
      result.y.row(row, d)[i] = from_range<T>(quantised(value, scale));
      result.codes.row(row, d)[i] = encode(e4m3(), value.value / scale.value, Overflow::kSaturate);
    }
  });
  return result;
}

template <class T>
Array<T> fp8_row_scale(const Array<T>& amax, double amax_floor) {
  Array<T> scale(amax.shape);
  for (std::int64_t i = 0; i < amax.size(); ++i) {
    const double value = std::max(midpoint(amax[i]), amax_floor);
    // What a quotient and a base-2 logarithm in the compute format may shift the argument of the ceiling by.
    const T exponent = log(T(value) / T(e4m3().max_finite)) / log(T(2.0));
    const double shift = std::is_same_v<T, Bound> ? std::expm1(radius(exponent) * 0.6931471805599454) : 0.0;
    scale[i] = from_range<T>({power_of_two_scale(value, amax_floor), power_of_two_scale(value * (1.0 - shift), 0.0),
                              power_of_two_scale(value * (1.0 + shift), 0.0)});
  }
  return scale;
}

template <class T>
Array<T> head_weights(const Array<T>& x, const Array<T>& weight, std::int64_t head_dim) {
  if (head_dim < 1) throw InputError("head_dim", std::to_string(head_dim), "at least 1");
  Array<T> w = matmul_nt(x, weight);
  const T per_head = inverse_root<T>(weight.dim(0)), per_channel = inverse_root<T>(head_dim);
  for (T& value : w.data) value = round_at(point("head_weights/product"), value) * per_head * per_channel;
  return w;
}

template <class T>
T index_score(const Array<T>& q, const Array<T>& pooled, const Array<T>& w, std::int64_t t, std::int64_t p,
              bool use_relu, std::optional<double> scale) {
  const std::int64_t heads = q.dim(1), d = q.dim(2);
  std::vector<T> terms(static_cast<std::size_t>(heads));
  for (std::int64_t h = 0; h < heads; ++h) {
    T value = dot(q.row(t * heads + h, d), 1, pooled.row(p, d), 1, d);
    if (scale) value = value * constant<T>(*scale);
    terms[static_cast<std::size_t>(h)] = use_relu ? relu(value) : value;
  }
  return dot(terms.data(), 1, w.row(t, heads), 1, heads);
}

template <class T>
Array<T> index_scores(const Array<T>& q, const Array<T>& pooled, const Array<T>& w, bool use_relu,
                      std::optional<double> scale) {
  Array<T> s({q.dim(0), pooled.dim(0)});
  parallel_for(q.dim(0), [&](std::int64_t t) {
    for (std::int64_t p = 0; p < pooled.dim(0); ++p) s.at(t, p) = index_score(q, pooled, w, t, p, use_relu, scale);
  });
  return s;
}

namespace {

PoolRounding pool_rounding(const std::string& text) {
  if (text == "none") return PoolRounding::kNone;
  if (text == "bf16") return PoolRounding::kOnce;
  if (text == "hf") return PoolRounding::kHf;
  throw InputError("rounding", text, "none, bf16 or hf");
}

}  // namespace

template <class T>
void add_indexer_ops(OpTable<T>& table) {
  table["kpool_compress"] = [](const Call<T>& call) {
    KPool<T> pool = kpool_compress(call.in("k"), call.has("gate") ? call.in("gate") : Array<T>(),
                                   call.has("ape") ? call.in("ape") : Array<T>(), call.integer("kpool"),
                                   call.has("cu_seqlens") ? call.index("cu_seqlens") : Index(),
                                   pool_rounding(call.text("rounding")));
    return Results<T>{{"pooled", std::move(pool.pooled)},
                      {"first_token", std::move(pool.first_token)},
                      {"weights", std::move(pool.weights)},
                      {"exp_of_score_minus_max", std::move(pool.exp_of_score_minus_max)}};
  };
  table["hadamard_fp8"] = [](const Call<T>& call) {
    HadamardFp8<T> result =
        hadamard_fp8(call.in("x"), call.flag("quantize"), call.real("amax_floor"), call.flag("rotate"));
    Results<T> results{{"y", std::move(result.y)},
                       {"rotated", std::move(result.rotated)},
                       {"transformed", std::move(result.transformed)}};
    if (call.flag("quantize")) {
      results["scale"] = std::move(result.scale);
      results["amax"] = std::move(result.amax);
      results["codes"] = std::move(result.codes);
    }
    return results;
  };
  table["head_weights"] = [](const Call<T>& call) {
    return Results<T>{{"w", head_weights(call.in("x"), call.in("weight"), call.integer("head_dim"))}};
  };
  table["index_scores"] = [](const Call<T>& call) {
    return Results<T>{{"s", index_scores(call.in("q"), call.in("pooled"), call.in("w"), call.flag("relu"),
                                         call.optional_real("scale"))}};
  };
  table["select_tokens"] = [](const Call<T>& call) {
    Selection chosen = select_tokens(call.in("scores"), call.index("first_token"), call.index("visible_start"),
                                     call.index("visible_end"), call.integer("topk"), call.integer("kpool"),
                                     call.flag("always_select_tail"));
    Array<T> margin({static_cast<std::int64_t>(chosen.margin.size())},
                    std::vector<T>(chosen.margin.begin(), chosen.margin.end()));
    const Index first = call.index("first_token"), start = call.index("visible_start"), end = call.index("visible_end");
    Array<T> visible_scores = call.in("scores");
    const std::int64_t rows = visible_scores.dim(0), pools = visible_scores.dim(1);
    Index tied(visible_scores.shape);
    for (std::int64_t t = 0; t < rows; ++t) {
      for (const std::int64_t p : chosen.tied[static_cast<std::size_t>(t)]) tied.at(t, p) = 1;
      for (std::int64_t p = 0; p < pools; ++p)
        if (!pool_visible(first[p], call.integer("kpool"), start[t], end[t]))
          visible_scores.at(t, p) = T(-std::numeric_limits<double>::infinity());
    }
    return Results<T>{{"ids", std::move(chosen.ids)},
                      {"pools", std::move(chosen.pools)},
                      {"margin", std::move(margin)},
                      {"tied", std::move(tied)},
                      {"visible_scores", std::move(visible_scores)}};
  };
  table["fp8_row_scale"] = [](const Call<T>& call) {
    return Results<T>{{"scale", fp8_row_scale(call.in("amax"), call.real("amax_floor"))}};
  };
}

#define ASSAY_INSTANTIATE(T)                                                                                      \
  template KPool<T> kpool_compress(const Array<T>&, const Array<T>&, const Array<T>&, std::int64_t, const Index&, \
                                   PoolRounding);                                                                 \
  template HadamardFp8<T> hadamard_fp8(const Array<T>&, bool, double, bool);                                      \
  template Array<T> fp8_row_scale(const Array<T>&, double);                                                       \
  template Array<T> head_weights(const Array<T>&, const Array<T>&, std::int64_t);                                 \
  template Array<T> index_scores(const Array<T>&, const Array<T>&, const Array<T>&, bool, std::optional<double>); \
  template T index_score(const Array<T>&, const Array<T>&, const Array<T>&, std::int64_t, std::int64_t, bool,     \
                         std::optional<double>);                                                                  \
  template void add_indexer_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
