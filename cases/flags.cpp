#include "cases/flags.h"

#include <algorithm>
#include <iterator>

#include "cases/error.h"

namespace assay {
namespace {

using nlohmann::json;

/// The name that a flag took later (megatron.md 5.3), and the one that it has here.
constexpr std::string_view kLaterName = "mla_proj_disable_quantization", kFirstName = "mla_disable_attention_fp8";

const FlagSpec& flag_named(std::string_view name) {
  const std::vector<FlagSpec>& specs = flag_specs();
  if (name == kLaterName) name = kFirstName;
  const auto found = std::find_if(specs.begin(), specs.end(), [&](const FlagSpec& spec) { return spec.name == name; });
  if (found != specs.end()) return *found;
  std::string near;
  const std::string_view family = name.substr(0, name.find('_'));
  for (const FlagSpec& spec : specs)
    if (spec.name.rfind(family, 0) == 0) near += (near.empty() ? "" : ", ") + spec.name;
  throw InputError("flag", std::string(name), near.empty() ? "a name of `assay list flags`" : near);
}

std::string type_of(const json& value) {
  if (value.is_boolean()) return "true or false";
  if (value.is_number_integer()) return "an integer";
  if (value.is_string()) return "a text";
  return value.is_null() ? "a number or null" : "a number";
}

bool fits(const json& value, const json& like) {
  if (like.is_boolean()) return value.is_boolean();
  if (like.is_number_integer()) return value.is_number_integer();
  if (like.is_string()) return value.is_string();
  return value.is_number() || (like.is_null() && value.is_null());
}

}  // namespace

const std::vector<FlagSpec>& flag_specs() {
  static const std::vector<FlagSpec> specs = {
      {"mhc_num_residual_streams", 4, 4, "residual streams", "megatron.md 1.1"},
      {"mhc_sinkhorn_iterations", 20, 20, "Sinkhorn iterations, at least 1", "megatron.md 1.1"},
      {"mhc_init_gating_factor", 0.01, 0.01, "initial alpha_pre, alpha_post and alpha_res, at least 0",
       "megatron.md 1.1"},
      {"mhc_norm_eps_inside_sqrt", false, true, "eps of the mapping's norm inside the root, and layernorm_epsilon",
       "megatron.md 1.3"},
      {"mhc_keep_mappings_in_fp32", false, true, "h_pre, h_post and h_res stay F32 until the last cast",
       "megatron.md 1.3, 1.5, 1.6"},
      {"mhc_learned_output_contract", true, false, "the streams are contracted by a learned head, else by their mean",
       "megatron.md 1.8"},
      {"use_fused_mhc", false, false, "the fused mHC kernels", "megatron.md 1.1"},
      {"enable_mhc_connections", false, true, "mHC at all", "megatron.md 1.1"},
      {"fp32_residual_connection", false, false, "the residual stream in F32", "megatron.md 1.1"},
      {"kda_two_stage_gates", false, true, "gates through a 128-wide intermediate", "megatron.md 2.1"},
      {"kda_safe_gate", false, true, "g = kda_lower_bound * sigmoid(...) instead of softplus", "megatron.md 2.3"},
      {"kda_lower_bound", nullptr, -5.0, "bound of the log decay", "megatron.md 2.1"},
      {"kda_disable_fp8", false, true, "KDA projections stay in the model's dtype under FP8", "megatron.md 5.3"},
      {"gdn_pre_gated_delta_rule_fusion", false, false, "not implemented for KDA", "megatron.md 2.1"},
      {"mla_disable_attention_fp8", false, true,
       "MLA projections stay in the model's dtype under FP8; later mla_proj_disable_quantization", "megatron.md 5.3"},
      {"dsa_indexer_kpool", 1, 4, "tokens of an index pool; 1: no pooling", "megatron.md 3.1"},
      {"dsa_indexer_kpool_always_select_tail", false, true, "append the tokens of the query's incomplete pool",
       "megatron.md 3.1, 3.5"},
      {"dsa_indexer_kpool_fp8", false, true, "index queries and pool keys through Hadamard and E4M3",
       "megatron.md 3.4, 9"},
      {"dsa_indexer_rotate_activation", true, false, "Hadamard rotation in BF16", "megatron.md 3.1"},
      {"dsa_indexer_scoring_relu", true, true, "index dots are clamped at zero", "megatron.md 3.5"},
      {"dsa_indexer_k_norm_epsilon", nullptr, 1e-6, "eps of the index key's LayerNorm; null: layernorm_epsilon",
       "megatron.md 3.1"},
      {"dsa_indexer_k_norm_fp32", false, false, "the index key's LayerNorm returns F32", "megatron.md 3.1"},
      {"dsa_indexer_topk_freq", 1, 1, "layers that share one selection", "megatron.md 3.1"},
      {"dsa_indexer_skip_topk_offset", 0, 0, "layers before the first shared selection", "megatron.md 3.1"},
      {"dsa_indexer_loss_coeff", 0.0, 0.0, "factor of the indexer's loss", "megatron.md 3.6"},
      {"dsa_indexer_weights_proj_use_quantization", false, false, "the head-weights projection may be quantised",
       "megatron.md 3.7"},
      {"dsa_indexer_weights_proj_output_dtype", "bf16", "fp32", "bf16 or fp32", "megatron.md 3.7"},
      {"fp8", false, false, "blockwise FP8 GEMMs where a module is not excluded", "megatron.md 5"},
      {"fp8_power_of_two_scales", true, true,
       "scales truncated to powers of two (NVTE_FP8_BLOCK_SCALING_FP32_SCALES=0)", "megatron.md 5.1"},
      {"keep_mtp_spec_in_bf16", false, true, "the multi-token-prediction layer stays out of FP8", "megatron.md 5.3"},
  };
  return specs;
}

Flags::Flags() : values_(json::object()) {
  for (const FlagSpec& spec : flag_specs()) values_[spec.name] = spec.fallback;
}

Flags Flags::glm() {
  Flags flags;
  for (const FlagSpec& spec : flag_specs()) flags.values_[spec.name] = spec.glm;
  return flags;
}

void Flags::set(std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string_view name = assignment.substr(0, equals);
  const FlagSpec& spec = flag_named(name);
  if (equals == std::string_view::npos) return set(name, json(true));
  const std::string text(assignment.substr(equals + 1));
  const json value = spec.fallback.is_string() ? json(text) : json::parse(text, nullptr, false);
  if (value.is_discarded()) throw InputError("flag " + spec.name, text, type_of(spec.fallback));
  set(name, value);
}

void Flags::set(std::string_view name, const json& value) {
  const FlagSpec& spec = flag_named(name);
  if (!fits(value, spec.fallback)) throw InputError("flag " + spec.name, value.dump(), type_of(spec.fallback));
  values_[spec.name] = value;
}

bool Flags::on(std::string_view name) const { return value(name).get<bool>(); }

const json& Flags::value(std::string_view name) const { return values_.at(flag_named(name).name); }

void Flags::check() const {
  const auto refuse = [](const std::string& where, const std::string& found, const std::string& rule) {
    throw InputError("flags " + where, found, rule);
  };
  if (on("use_fused_mhc"))
    for (const char* precision : {"mhc_norm_eps_inside_sqrt", "mhc_keep_mappings_in_fp32"})
      if (on(precision))
        refuse(std::string("use_fused_mhc, ") + precision, "both on", "the fused kernels have neither");
  if (on("enable_mhc_connections") && on("fp32_residual_connection"))
    refuse("enable_mhc_connections, fp32_residual_connection", "both on",
           "mHC keeps its streams in the activation dtype");
  for (const char* count :
       {"mhc_sinkhorn_iterations", "mhc_num_residual_streams", "dsa_indexer_kpool", "dsa_indexer_topk_freq"})
    if (value(count).get<std::int64_t>() < 1) refuse(count, value(count).dump(), "at least 1");
  if (value("mhc_init_gating_factor").get<double>() < 0.0)
    refuse("mhc_init_gating_factor", value("mhc_init_gating_factor").dump(), "at least 0");
  const json& bound = value("kda_lower_bound");
  if (on("kda_safe_gate") && (!bound.is_number() || bound.get<double>() < -5.0 || bound.get<double>() >= 0.0))
    refuse("kda_safe_gate, kda_lower_bound", bound.dump(), "-5 <= kda_lower_bound < 0");
  if (on("gdn_pre_gated_delta_rule_fusion"))
    refuse("gdn_pre_gated_delta_rule_fusion", "true", "not implemented for KDA");
  if (value("dsa_indexer_loss_coeff").get<double>() > 0.0 && value("dsa_indexer_kpool").get<std::int64_t>() > 1)
    refuse("dsa_indexer_loss_coeff, dsa_indexer_kpool",
           value("dsa_indexer_loss_coeff").dump() + ", " + value("dsa_indexer_kpool").dump(),
           "no loss with pooling: the loss is token-level");
  const std::string dtype = value("dsa_indexer_weights_proj_output_dtype").get<std::string>();
  if (dtype != "bf16" && dtype != "fp32") refuse("dsa_indexer_weights_proj_output_dtype", dtype, "bf16 or fp32");
}

}  // namespace assay
