#include "cases/fp8.h"

#include <algorithm>

#include <fmt/format.h>

#include "cases/error.h"

namespace assay {
namespace {

constexpr std::int64_t kTile = 128;
constexpr double kGradientFloor = 1e-12;  // megatron.md 5.2

std::vector<std::string> components(std::string_view name) {
  std::vector<std::string> parts{""};
  for (const char c : name) {
    if (c == '.')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

bool matches(const std::string& pattern, const std::string& component) {
  if (pattern.back() != '*') return component == pattern;
  return component.compare(0, pattern.size() - 1, pattern, 0, pattern.size() - 1) == 0;
}

bool applies(const Fp8ModuleRule& rule, const std::vector<std::string>& parts) {
  return std::any_of(rule.modules.begin(), rule.modules.end(), [&](const std::string& pattern) {
    return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) { return matches(pattern, part); });
  });
}

std::string joined(const std::vector<std::string>& words, const std::string& separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::string known_modules() {
  std::vector<std::string> names;
  for (const Fp8ModuleRule& rule : fp8_module_rules())
    names.insert(names.end(), rule.modules.begin(), rule.modules.end());
  return joined(names, ", ");
}

void check_positive(const std::string& where, std::int64_t value, std::int64_t least) {
  if (value < least) throw InputError(where, std::to_string(value), fmt::format("{} or more is needed", least));
}

}  // namespace

BlockQuantizer block_quantizer(const BlockRecipe& recipe, QuantizerRole role) {
  const bool gradient = role == QuantizerRole::kBackwardGradient;
  return {gradient && recipe.hybrid ? &e5m2() : &e4m3(), role == QuantizerRole::kForwardWeight ? kTile : 1, kTile,
          recipe.power_of_two, gradient && recipe.guard_backward_gradient ? kGradientFloor : 0.0};
}

nlohmann::json attributes_of(const BlockQuantizer& quantizer) {
  return {{"block_rows", quantizer.block_rows},
          {"block_columns", quantizer.block_columns},
          {"format", quantizer.format->name},
          {"power_of_two", quantizer.power_of_two},
          {"amax_epsilon", quantizer.amax_epsilon}};
}

// megatron.md 5.3; names 1.2, 2.2, 3.2, 4, 9.
const std::vector<Fp8ModuleRule>& fp8_module_rules() {
  static const std::vector<Fp8ModuleRule> rules = {
      {{"visual", "vision_model"}, {}, false, "vision is never quantised"},
      {{"hyper_connection*", "mapping_proj"}, {}, false, "mHC mappings are FP32"},
      {{"router"}, {}, false, "routers are never quantised"},
      {{"embedding", "word_embeddings", "output_layer"}, {}, false, "embeddings and head are never quantised"},
      {{"indexer", "linear_wq_b", "linear_wk", "linear_weights_proj", "index_kpool_compress_gate"},
       {},
       false,
       "the indexer is built and run with FP8 disabled"},
      {{"linear_kv_up*"}, {}, false, "the absorbed weight is read as it is, no GEMM module is called"},
      {{"mtp"}, {"keep_mtp_spec_in_bf16"}, std::nullopt, "multi-token prediction"},
      {{"in_proj", "beta_proj", "f_a*", "f_b*", "g_a*", "g_b*", "out_proj"},
       {"kda_disable_fp8"},
       true,
       "KDA projection"},
      {{"linear_q_down*", "linear_q_up*", "linear_kv_down*", "linear_proj"},
       {"mla_disable_attention_fp8", "mla_proj_disable_quantization"},
       true,
       "MLA projection"},
      {{"linear_fc1", "linear_fc2"}, {}, true, "experts, shared experts and dense MLPs stay in FP8"},
      {{"eh_proj", "e_proj", "h_proj"}, {}, true, "a projection of multi-token prediction that no flag keeps in BF16"},
  };
  return rules;
}

Fp8Placement fp8_placement(std::string_view module, const nlohmann::json& flags) {
  const std::vector<std::string> parts = components(module);
  for (const Fp8ModuleRule& rule : fp8_module_rules()) {
    if (!applies(rule, parts)) continue;
    if (rule.bf16_if.empty()) return {*rule.quantised, rule.reason};
    const auto flag = std::find_if(rule.bf16_if.begin(), rule.bf16_if.end(),
                                   [&](const std::string& name) { return flags.contains(name); });
    const std::string where = "FP8 module " + std::string(module) + ": flag " + joined(rule.bf16_if, " or ");
    if (flag == rule.bf16_if.end()) throw InputError(where, "absent", "true or false is needed");
    const nlohmann::json& value = flags.at(*flag);
    if (!value.is_boolean()) throw InputError(where, value.dump(), "true or false is needed");
    if (value.get<bool>()) return {false, fmt::format("{}: {} is true", rule.reason, *flag)};
    if (rule.quantised) return {*rule.quantised, fmt::format("{}: {} is false", rule.reason, *flag)};
  }
  throw InputError("FP8 module", std::string(module), "known parts: " + known_modules());
}

std::int64_t fp8_padding(std::string_view recipe) {
  if (recipe == "mxfp8") return 32;
  if (recipe == "delayed" || recipe == "tensorwise" || recipe == "blockwise") return 16;
  throw InputError("FP8 recipe", std::string(recipe), "delayed, tensorwise, blockwise or mxfp8 is needed");
}

std::optional<std::string> alignment_fault(std::string_view symbol, std::int64_t size, std::int64_t tp_size,
                                           std::int64_t multiple) {
  check_positive("FP8 alignment: " + std::string(symbol), size, 0);
  check_positive("FP8 alignment: TP", tp_size, 1);
  check_positive("FP8 alignment: multiple", multiple, 1);
  const auto fault = [&](std::int64_t part, std::int64_t divisor) {
    return fmt::format("{}={}, TP={}: {} % {} = {}", symbol, size, tp_size, part, divisor, part % divisor);
  };
  if (size % tp_size != 0) return fault(size, tp_size);
  if (size / tp_size % multiple != 0) return fault(size / tp_size, multiple);
  return std::nullopt;
}

void check_fp8_tokens(std::int64_t tokens, std::int64_t tp_size) {
  const std::optional<std::string> fault = alignment_fault("T", tokens, tp_size, kFp8TokenMultiple);
  if (fault) throw InputError("FP8 tokens", *fault, fmt::format("pad to {}", padded_fp8_tokens(tokens, tp_size)));
}

std::int64_t padded_fp8_tokens(std::int64_t tokens, std::int64_t tp_size) {
  check_positive("FP8 tokens", tokens, 0);
  check_positive("FP8 tokens: TP", tp_size, 1);
  const std::int64_t multiple = tp_size * kFp8TokenMultiple;
  return (tokens + multiple - 1) / multiple * multiple;
}

}  // namespace assay
