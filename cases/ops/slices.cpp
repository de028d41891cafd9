#include "cases/ops/slices.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "cases/error.h"
#include "cases/ops/dims.h"

namespace assay {
namespace {

using Dims = std::map<std::string, std::int64_t>;
using Places = std::vector<std::int64_t>;

/// "... N R/block_rows": symbols, with the block size where only whole blocks may be chosen.
std::vector<Slice> slices(const std::string& text) {
  std::vector<Slice> result;
  for (const std::string& word : dimension_words(text)) {
    const std::size_t slash = word.find('/');
    result.push_back({word.substr(0, slash), slash == std::string::npos ? "" : word.substr(slash + 1)});
  }
  return result;
}

SliceRule rule(std::string op, std::string outputs, const std::string& along, const std::string& unused = "",
               SliceCompanion companion = SliceCompanion::kNone, std::string only_without = "") {
  return {std::move(op),          std::move(outputs), slices(along), dimension_words(unused), companion, {},
          std::move(only_without)};
}

/// A rule of an op that reads selected places only: "S/W" of S as many as W.
SliceRule gathering(const std::string& gathered, SliceRule rule) {
  rule.gathered = slices(gathered);
  return rule;
}

std::vector<SliceRule> forward_rules() {
  using enum SliceCompanion;
  return {
      rule("linear", "y", "... N"),
      rule("head_linear", "y", "T H Dk"),
      rule("grouped_linear", "y", "M N", "", kGroupedRows),
      rule("dequantize_block", "y", "R/block_rows C/block_columns"),
      rule("quantize_block", "codes scale_inv", "R/block_rows C/block_columns"),
      rule("quantize_block", "codes_columnwise scale_inv_columnwise", "R/block_columns C/block_rows"),
      rule("fp8_scale", "scale scale_inv floored", "N"),
      rule("linear_fp8", "y", "M N/w_block_rows|block", "", kScaleBlocks),
      rule("rms_norm", "y", "..."),
      rule("layer_norm", "y", "..."),
      rule("gated_rms_norm", "y", "..."),
      rule("l2norm", "y", "..."),
      rule("stream_expand", "y", "... C"),
      rule("mhc_mapping", "h_pre h_post h_res inverse_rms projection mapping_logits", "T"),
      rule("sinkhorn", "h_res row_sums column_sums", "..."),
      rule("mhc_aggregate", "y", "T C"),
      rule("mhc_mix", "y", "T C"),
      rule("mhc_layer", "aggregated output", "T"),  // the mapping needs every channel
      rule("stream_contract", "y", "T C", "", kNone, "fn"),
      rule("stream_contract", "y", "T"),  // learned: the same
      rule("kda_conv", "y", "Ch"),
      rule("kda_gate", "g", "T H D"),
      rule("beta", "beta", "T H"),
      rule("delta_rule", "o final_state", "Hv V", "", kValueHeads),
      rule("delta_rule_chunked", "o final_state", "Hv V", "", kValueHeads),
      rule("kda_attention", "o final_state", "H V"),
      rule("kda_attention", "g beta", "H", "V"),
      rule("kpool_compress", "pooled weights exp_of_score_minus_max", "D"),
      rule("kpool_compress", "first_token", "", "D"),
      rule("hadamard_fp8", "y rotated transformed amax scale codes", "..."),
      rule("fp8_row_scale", "scale", "... N"),
      rule("head_weights", "w", "T"),  // Hi is in the factor
      rule("index_scores", "s", "T P"),
      rule("select_tokens", "ids pools margin tied visible_scores", "T"),
      rule("indexer_loss", "row_loss", "T"),
      gathering("S/W", rule("sparse_attention", "o lse", "T H")),
      gathering("S/W", rule("mla_attention", "o", "T H Dv")),
      gathering("S/W", rule("mla_attention", "weights lse", "T H", "Dv")),
      rule("router", "logits experts weights margin group_margin", "T"),
      rule("combine", "y", "T C"),
      rule("swiglu", "y", "... N"),
      rule("residual_add", "y", "... C"),
      rule("embed", "x", "T C", "", kSelectedRows),
      rule("cross_entropy", "loss lse", "T", "", kCountedLabels),
      rule("patch_embed", "y", "N C"),
      rule("rope_2d", "y", "T H"),
      rule("segment_attention", "o lse", "H"),
      rule("gelu", "y", "... N"),
      rule("downsample", "y", "M O"),
      rule("feature_scatter", "y", "C"),
  };
}

std::vector<SliceRule> backward_rules() {
  using enum SliceCompanion;
  return {
      rule("linear.backward", "d_x", "... K"),
      rule("linear.backward", "d_weight", "N K"),
      rule("linear.backward", "d_bias", "N", "K"),
      rule("head_linear.backward", "d_q", "T H Dq"),
      rule("head_linear.backward", "d_weight", "H Dk Dq"),
      rule("grouped_linear.backward", "d_x", "M K", "", kGroupedRows),
      rule("grouped_linear.backward", "d_weight", "E N K", "", kGroups),
      rule("rms_norm.backward", "d_x", "..."),
      rule("layer_norm.backward", "d_x", "..."),
      rule("layer_norm.backward", "d_bias", "N"),
      rule("gated_rms_norm.backward", "d_o d_z", "..."),
      rule("l2norm.backward", "d_x", "..."),
      rule("stream_expand.backward", "d_x", "... C"),
      rule("mhc_mapping.backward", "d_x", "T"),
      rule("sinkhorn.backward", "d_logits", "..."),
      rule("mhc_aggregate.backward", "d_x", "T C"),
      rule("mhc_aggregate.backward", "d_h_pre", "T"),
      rule("mhc_mix.backward", "d_residual d_branch", "T C"),
      rule("mhc_mix.backward", "d_h_post d_h_res", "T"),
      rule("mhc_mix.backward", "d_branch_bias", "C"),
      rule("mhc_layer.backward", "d_x d_branch", "T"),
      rule("stream_contract.backward", "d_x", "T C", "", kNone, "fn"),
      rule("stream_contract.backward", "d_x", "T"),
      rule("kda_conv.backward", "d_u d_weight d_initial", "Ch"),
      rule("kda_gate.backward", "d_f", "T H D"),
      rule("kda_gate.backward", "d_A_log", "H"),
      rule("kda_gate.backward", "d_dt_bias", "H D"),
      rule("beta.backward", "d_b", "T H"),
      rule("delta_rule.backward", "d_v d_initial_state", "Hv V", "", kValueHeads),
      rule("delta_rule.backward", "d_g d_beta", "Hv", "", kValueHeads),
      rule("delta_rule.backward", "d_q d_k", "H", "", kKeyHeads),
      rule("delta_rule_chunked.backward", "d_v d_initial_state", "Hv V", "", kValueHeads),
      rule("delta_rule_chunked.backward", "d_g d_beta", "Hv", "", kValueHeads),
      rule("delta_rule_chunked.backward", "d_q d_k", "H", "", kKeyHeads),
      rule("kda_attention.backward", "d_v d_initial_state", "H V"),
      rule("kda_attention.backward", "d_q d_k d_gate d_A_log d_dt_bias d_beta_logits", "H"),
      rule("kpool_compress.backward", "d_k d_gate d_ape", "D"),
      rule("hadamard_fp8.backward", "d_x", "..."),
      rule("head_weights.backward", "d_x", "T C"),
      rule("head_weights.backward", "d_weight", "C"),
      rule("index_scores.backward", "d_q d_w", "T Hi"),
      rule("index_scores.backward", "d_pooled", "P"),
      rule("indexer_loss.backward", "d_scores", "T", "", kLossRows),
      gathering("S/W", rule("sparse_attention.backward", "d_q", "T H")),
      gathering("S/W", rule("mla_attention.backward", "d_q", "T H")),
      rule("mla_attention.backward", "d_k", "H"),
      rule("mla_attention.backward", "d_v", "H Dv"),
      rule("router.backward", "d_x", "T"),
      rule("combine.backward", "d_expert_out d_shared", "T C"),
      rule("combine.backward", "d_weights", "T"),
      rule("swiglu.backward", "d_gate d_up", "... N"),
      rule("residual_add.backward", "d_a d_b", "... C"),
      rule("embed.backward", "d_table", "C"),
      // The share of d_mean depends on how many labels of the whole call count.
      rule("cross_entropy.backward", "d_logits", "T", "", kCountedLabels, "d_mean"),
      rule("patch_embed.backward", "d_x", "N P"),
      rule("patch_embed.backward", "d_weight", "C P"),
      rule("patch_embed.backward", "d_bias", "C", "P"),
      rule("rope_2d.backward", "d_x", "T H"),
      rule("segment_attention.backward", "d_q d_k d_v", "H"),
      rule("gelu.backward", "d_x", "... N"),
      rule("downsample.backward", "d_x", "M C"),
      rule("downsample.backward", "d_weight", "O C"),
      rule("downsample.backward", "d_bias", "O", "C"),
      rule("feature_scatter.backward", "d_x d_features", "C"),
  };
}

bool has_word(const std::string& words, std::string_view word) {
  const std::vector<std::string> all = dimension_words(words);
  return std::find(all.begin(), all.end(), word) != all.end();
}

/// The symbols and numbers of a word, operators left out.
std::vector<std::string> atoms(const std::string& word) {
  std::vector<std::string> result(1);
  for (const char c : word) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      result.back() += c;
    } else if (!result.back().empty()) {
      result.emplace_back();
    }
  }
  if (result.back().empty()) result.pop_back();
  return result;
}

bool is_sliced(const std::string& symbol, const Selection& selection) { return selection.elements.count(symbol) != 0; }

/// Places on an axis of `factors`, the last running fastest.
Places of_product(const std::vector<std::string>& factors, const Dims& dims, const Selection& selection) {
  Places places{0};
  for (const std::string& factor : factors) {
    const auto size = DimensionWord(factor).value(dims);
    ASSAY_CHECK(size.has_value());
    Places digits(static_cast<std::size_t>(*size));
    for (std::int64_t i = 0; i < *size; ++i) digits[static_cast<std::size_t>(i)] = i;
    if (const auto chosen = selection.elements.find(factor); chosen != selection.elements.end())
      digits = chosen->second;
    Places next;
    for (const std::int64_t place : places)
      for (const std::int64_t digit : digits) next.push_back(place * *size + digit);
    places = std::move(next);
  }
  return places;
}

}  // namespace

const std::vector<SliceRule>& slice_rules() {
  static const std::vector<SliceRule> all = [] {
    std::vector<SliceRule> rules = forward_rules();
    for (SliceRule& backward : backward_rules()) rules.push_back(std::move(backward));
    return rules;
  }();
  return all;
}

const SliceRule* slice_rule(const OpCall& call, std::string_view output) {
  std::string names;
  bool known = false;
  for (const OperandSpec& spec : call.spec->outputs) {
    names += (names.empty() ? "" : ", ") + spec.name;
    known = known || spec.name == output;
  }
  if (!known)
    throw InputError(fmt::format("op {}: output {}", call.spec->name, output), "unknown", "allowed: " + names);
  for (const SliceRule& rule : slice_rules())
    if (rule.op == call.spec->name && has_word(rule.outputs, output) && call.inputs.count(rule.only_without) == 0)
      return &rule;
  return nullptr;
}

std::optional<Places> sliced_axis(const std::string& word, const Dims& dims, const Selection& selection) {
  const std::size_t equals = word.find('=');
  const std::string name = word.substr(0, equals),
                    expression = equals == std::string::npos ? name : word.substr(equals + 1);
  if (is_sliced(name, selection)) return selection.elements.at(name);
  const std::vector<std::string> symbols = atoms(expression);
  if (std::none_of(symbols.begin(), symbols.end(), [&](const auto& s) { return is_sliced(s, selection); }))
    return std::nullopt;
  if (symbols.front() == "ceil") {
    // ceil(symbol/block): one place for each block.
    ASSAY_CHECK(symbols.size() == 3 && selection.blocks.count(symbols[1]) != 0);
    return selection.blocks.at(symbols[1]);
  }
  ASSAY_CHECK(expression.find_first_of("+-") == std::string::npos);
  return of_product(symbols, dims, selection);
}

}  // namespace assay
