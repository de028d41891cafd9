#include "reference/ops/mhc_backward.h"

#include "reference/linear_algebra.h"
#include "reference/ops/kink.h"
#include "reference/parallel.h"

namespace assay::reference {
namespace {

template <class T>
Array<T> transposed(const Array<T>& x) {
  Array<T> y({x.dim(1), x.dim(0)});
  for (std::int64_t i = 0; i < x.dim(0); ++i)
    for (std::int64_t j = 0; j < x.dim(1); ++j) y.at(j, i) = x.at(i, j);
  return y;
}

/// Sums of the columns of x [T, N] in token order.
template <class T>
Array<T> sum_over_tokens(const Array<T>& x) {
  const std::int64_t tokens = x.dim(0), width = x.dim(1);
  const T one(1.0);
  Array<T> sums({width});
  parallel_for(width, [&](std::int64_t c) { sums[c] = dot(x.data.data() + c, width, &one, 0, tokens); });
  return sums;
}

template <class T>
Array<T> or_zeros(const Array<T>& x, const Shape& shape) {
  return x.size() ? x.reshaped(shape) : Array<T>(shape);
}

/// r = 1 / rms of one token's streams, with what its derivative needs.
template <class T>
struct Rms {
  T norm, r;
};

template <class T>
Rms<T> rms(const T* x, std::int64_t values, const MappingOptions& options) {
  const T squares = dot(x, 1, x, 1, values);
  const T count(static_cast<double>(values));
  const T norm = sqrt(squares);
  if (options.norm_eps_inside_sqrt) return {norm, rsqrt(squares / count + constant<T>(options.norm_eps))};
  return {norm, T(1.0) / (norm / sqrt(count) + constant<T>(options.norm_eps))};
}

/// x_i / |x|, 0 for a row of zeros; anything in [-1, 1] for one that may be such a row.
template <class T>
T direction(const T& x, const T& norm) {
  if (midpoint(norm) > radius(norm)) return x / norm;
  if (midpoint(norm) == 0.0 && radius(norm) == 0.0) return T(0.0);
  return either(either(T(0.0), T(1.0)), T(-1.0));
}

/// Adds dr r'(x) to d_x.
template <class T>
void add_through_rms(const T* x, std::int64_t values, const Rms<T>& at, const T& dr, const MappingOptions& options,
                     T* d_x) {
  const T count(static_cast<double>(values));
  if (options.norm_eps_inside_sqrt) {
    const T slope = -(dr * (at.r * at.r * at.r) / count);
    for (std::int64_t i = 0; i < values; ++i) d_x[i] = d_x[i] + slope * x[i];
    return;
  }
  const T slope = -(dr * (at.r * at.r) / sqrt(count));
  for (std::int64_t i = 0; i < values; ++i) d_x[i] = d_x[i] + slope * direction(x[i], at.norm);
}

/// s (1 - s) at a logit.
template <class T>
T sigmoid_slope(const T& logit) {
  const T s = sigmoid(logit);
  return s * (T(1.0) - s);
}

template <class T>
void round_all(Array<T>& x) {
  for (T& value : x.data) value = round_at(point("mhc_mapping.backward/d_x"), value);
}

}  // namespace

template <class T>
Array<T> stream_expand_backward(const Array<T>& dy, std::int64_t n) {
  const std::int64_t width = dy.dim(-1);
  Shape shape = dy.shape;
  shape.erase(shape.end() - 2);
  Array<T> d_x(shape);
  if (width == 0) return d_x;
  const T one(1.0);
  parallel_for(d_x.size() / width, [&](std::int64_t t) {
    for (std::int64_t c = 0; c < width; ++c)
      d_x[t * width + c] = round_at(point("stream_expand.backward/d_x"), dot(dy.row(t, n * width) + c, width, &one, 0, n));
  });
  return d_x;
}

template <class T>
MappingGradient<T> mhc_mapping_backward(const Array<T>& x, const Array<T>& weight, const Array<T>& alpha,
                                        const Array<T>& bias, const MappingOptions& options,
                                        const MappingCotangent<T>& cotangent) {
  const std::int64_t tokens = x.dim(0), n = x.dim(1), values = n * x.dim(2), outputs = n * n + 2 * n;
  const Array<T> rows = x.reshaped({tokens, values});
  const Array<T> projection = matmul_nt(rows, weight);
  const auto block = [n](std::int64_t o) -> std::int64_t { return o < n ? 0 : (o < 2 * n ? 1 : 2); };
  std::vector<Rms<T>> at(static_cast<std::size_t>(tokens));
  Array<T> d_logits = or_zeros(cotangent.d_mapping_logits, {tokens, outputs}), res_logits({tokens, n, n});
  parallel_for(tokens, [&](std::int64_t t) {
    const Rms<T> here = at[static_cast<std::size_t>(t)] = rms(x.row(t, values), values, options);
    for (std::int64_t o = 0; o < outputs; ++o) {
      const T logit = here.r * projection.at(t, o) * alpha[block(o)] + bias[o];
      T& d = d_logits.at(t, o);
      if (o >= 2 * n) {
        res_logits[t * n * n + o - 2 * n] = logit;
      } else if (o >= n && cotangent.d_h_post.size()) {
        d = d + T(2.0) * cotangent.d_h_post.at(t, o - n) * sigmoid_slope(logit);
      } else if (o < n && cotangent.d_h_pre.size()) {
        d = d + cotangent.d_h_pre.at(t, o) * sigmoid_slope(logit);
      }
    }
  });
  const Array<T> d_res = sinkhorn_backward(res_logits, options.iterations, options.sinkhorn_eps, cotangent.d_h_res);

  Array<T> d_projection = or_zeros(cotangent.d_projection, {tokens, outputs}), d_alphas({tokens, 3});
  std::vector<T> d_r(static_cast<std::size_t>(tokens), T(0.0));
  parallel_for(tokens, [&](std::int64_t t) {
    const T& r = at[static_cast<std::size_t>(t)].r;
    std::vector<T> weighted(static_cast<std::size_t>(outputs)), scaled(static_cast<std::size_t>(outputs));
    for (std::int64_t o = 0; o < outputs; ++o) {
      T& d = d_logits.at(t, o);
      if (o >= 2 * n) d = d + d_res[t * n * n + o - 2 * n];
      weighted[static_cast<std::size_t>(o)] = d * alpha[block(o)];
      scaled[static_cast<std::size_t>(o)] = r * projection.at(t, o);
      d_projection.at(t, o) = d_projection.at(t, o) + weighted[static_cast<std::size_t>(o)] * r;
    }
    const T* d = d_logits.row(t, outputs);
    d_alphas.at(t, 0) = dot(d, 1, scaled.data(), 1, n);
    d_alphas.at(t, 1) = dot(d + n, 1, scaled.data() + n, 1, n);
    d_alphas.at(t, 2) = dot(d + 2 * n, 1, scaled.data() + 2 * n, 1, n * n);
    T& dr = d_r[static_cast<std::size_t>(t)];
    dr = dot(weighted.data(), 1, projection.row(t, outputs), 1, outputs);
    if (cotangent.d_inverse_rms.size()) dr = dr + cotangent.d_inverse_rms[t];
  });

  MappingGradient<T> gradient;
  gradient.d_x = matmul_nt(d_projection, transposed(weight)).reshaped(x.shape);
  gradient.d_weight = matmul_nt(transposed(d_projection), transposed(rows));
  gradient.d_alpha = sum_over_tokens(d_alphas);
  gradient.d_bias = sum_over_tokens(d_logits);
  parallel_for(tokens, [&](std::int64_t t) {
    add_through_rms(x.row(t, values), values, at[static_cast<std::size_t>(t)], d_r[static_cast<std::size_t>(t)],
                    options, gradient.d_x.row(t, values));
  });
  round_all(gradient.d_x);
  return gradient;
}

template <class T>
AggregateGradient<T> mhc_aggregate_backward(const Array<T>& x, const Array<T>& h_pre, const Array<T>& dy,
                                            bool in_fp32) {
  const std::int64_t tokens = x.dim(0), n = x.dim(1), width = x.dim(2);
  AggregateGradient<T> gradient{Array<T>(x.shape), Array<T>(h_pre.shape)};
  if (dy.size() == 0) return gradient;
  const T one(1.0);
  parallel_for(tokens, [&](std::int64_t t) {
    std::vector<T> products(static_cast<std::size_t>(width));
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t c = 0; c < width; ++c) {
        gradient.d_x.at(t, j, c) = round_at(point("mhc_aggregate.backward/d_x"), h_pre.at(t, j) * dy.at(t, c));
        if (!in_fp32) products[static_cast<std::size_t>(c)] = round_at(point("mhc_aggregate.backward/products"), x.at(t, j, c) * dy.at(t, c));
      }
      gradient.d_h_pre.at(t, j) = in_fp32 ? dot(x.row(t * n + j, width), 1, dy.row(t, width), 1, width)
                                          : round_at(point("mhc_aggregate.backward/d_h_pre"), dot(products.data(), 1, &one, 0, width));
    }
  });
  return gradient;
}

template <class T>
MixGradient<T> mhc_mix_backward(const Array<T>& residual, const Array<T>& branch, const Array<T>& h_post,
                                const Array<T>& h_res, const Array<T>& branch_bias, const Array<T>& dy, bool in_fp32) {
  const std::int64_t tokens = residual.dim(0), n = residual.dim(1), width = residual.dim(2);
  MixGradient<T> gradient{Array<T>(residual.shape), Array<T>(branch.shape), Array<T>(h_post.shape),
                          Array<T>(h_res.shape), branch_bias.size() ? Array<T>({width}) : Array<T>()};
  if (dy.size() == 0) return gradient;
  const auto stored = [in_fp32](const T& value) { return in_fp32 ? value : round_at(point("mhc_mix.backward/parts"), value); };
  const T one(1.0);
  Array<T> d_expanded({tokens, width});
  parallel_for(tokens, [&](std::int64_t t) {
    const T* g = dy.row(t, n * width);
    std::vector<T> products(static_cast<std::size_t>(n));
    for (std::int64_t c = 0; c < width; ++c) {
      for (std::int64_t j = 0; j < n; ++j)
        products[static_cast<std::size_t>(j)] = stored(h_post.at(t, j) * dy.at(t, j, c));
      d_expanded.at(t, c) = dot(products.data(), 1, &one, 0, n);
      gradient.d_branch.at(t, c) = round_at(point("mhc_mix.backward/d_branch"), d_expanded.at(t, c));
      for (std::int64_t i = 0; i < n; ++i)
        gradient.d_residual.at(t, i, c) = round_at(point("mhc_mix.backward/d_residual"), dot(h_res.row(t, n * n) + i * n, 1, g + c, width, n));
    }
    std::vector<T> terms(static_cast<std::size_t>(width));
    for (std::int64_t j = 0; j < n; ++j) {
      const auto along = [&](const T* values) {
        for (std::int64_t c = 0; c < width; ++c)
          terms[static_cast<std::size_t>(c)] = stored(values[c] * g[j * width + c]);
        return stored(dot(terms.data(), 1, &one, 0, width));
      };
      T d = along(branch.row(t, width));
      if (branch_bias.size()) d = stored(d + along(branch_bias.data.data()));
      gradient.d_h_post.at(t, j) = d;
      for (std::int64_t i = 0; i < n; ++i)
        gradient.d_h_res.at(t, i, j) = stored(dot(residual.row(t * n + i, width), 1, g + j * width, 1, width));
    }
  });
  if (branch_bias.size()) {
    gradient.d_branch_bias = sum_over_tokens(d_expanded);
    if (!in_fp32) round_all(gradient.d_branch_bias);
  }
  return gradient;
}

template <class T>
Array<T> contract_mean_backward(const Array<T>& dy, std::int64_t n) {
  const std::int64_t tokens = dy.dim(0), width = dy.dim(1);
  Array<T> d_x({tokens, n, width});
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t c = 0; c < width; ++c)
        d_x.at(t, i, c) = round_at(point("stream_contract.backward/d_x"), dy.at(t, c) / T(static_cast<double>(n)));
  return d_x;
}

template <class T>
ContractGradient<T> contract_learned_backward(const Array<T>& x, const Array<T>& fn, const Array<T>& base,
                                              const Array<T>& scale, double eps, const Array<T>& dy) {
  const std::int64_t tokens = x.dim(0), n = x.dim(1), width = x.dim(2), values = n * width;
  if (dy.size() == 0) return {Array<T>(x.shape), Array<T>(fn.shape), Array<T>({n}), Array<T>({1})};
  const Array<T> rows = x.reshaped({tokens, values});
  const Array<T> projection = matmul_nt(rows, fn);
  MappingOptions options;
  options.norm_eps = eps;
  std::vector<Rms<T>> at(static_cast<std::size_t>(tokens));
  std::vector<T> d_r(static_cast<std::size_t>(tokens));
  Array<T> p({tokens, n}), d_logits({tokens, n}), d_projection({tokens, n}), d_scales({tokens, 1});
  parallel_for(tokens, [&](std::int64_t t) {
    const Rms<T> here = at[static_cast<std::size_t>(t)] = rms(x.row(t, values), values, options);
    std::vector<T> scaled, weighted;
    for (std::int64_t j = 0; j < n; ++j) {
      scaled.push_back(projection.at(t, j) * here.r);
      const T logit = scaled.back() * scale[0] + base[j];
      p.at(t, j) = sigmoid(logit) + constant<T>(eps);
      const T d = dot(x.row(t * n + j, width), 1, dy.row(t, width), 1, width) * sigmoid_slope(logit);
      d_logits.at(t, j) = d;
      weighted.push_back(d * scale[0]);
      d_projection.at(t, j) = weighted.back() * here.r;
    }
    d_scales[t] = dot(d_logits.row(t, n), 1, scaled.data(), 1, n);
    d_r[static_cast<std::size_t>(t)] = dot(weighted.data(), 1, projection.row(t, n), 1, n);
  });
  ContractGradient<T> gradient;
  gradient.d_x = matmul_nt(d_projection, transposed(fn)).reshaped(x.shape);
  gradient.d_fn = matmul_nt(transposed(d_projection), transposed(rows));
  gradient.d_base = sum_over_tokens(d_logits);
  gradient.d_scale = sum_over_tokens(d_scales);
  parallel_for(tokens, [&](std::int64_t t) {
    add_through_rms(x.row(t, values), values, at[static_cast<std::size_t>(t)], d_r[static_cast<std::size_t>(t)],
                    options, gradient.d_x.row(t, values));
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t c = 0; c < width; ++c) {
        T& d = gradient.d_x.at(t, j, c);
        d = round_at(point("stream_contract.backward/d_x"), d + p.at(t, j) * dy.at(t, c));
      }
  });
  return gradient;
}

#define ASSAY_INSTANTIATE(T)                                                                                           \
  template Array<T> stream_expand_backward(const Array<T>&, std::int64_t);                                             \
  template MappingGradient<T> mhc_mapping_backward(const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&, \
                                                   const MappingOptions&, const MappingCotangent<T>&);                 \
  template AggregateGradient<T> mhc_aggregate_backward(const Array<T>&, const Array<T>&, const Array<T>&, bool);       \
  template MixGradient<T> mhc_mix_backward(const Array<T>&, const Array<T>&, const Array<T>&, const Array<T>&,         \
                                           const Array<T>&, const Array<T>&, bool);                                    \
  template Array<T> contract_mean_backward(const Array<T>&, std::int64_t);                                             \
  template ContractGradient<T> contract_learned_backward(const Array<T>&, const Array<T>&, const Array<T>&,            \
                                                         const Array<T>&, double, const Array<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
