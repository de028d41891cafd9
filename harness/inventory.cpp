#include "harness/inventory.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

namespace assay::harness {
namespace {

constexpr std::array<std::string_view, 11> kGroups{"embedding",      "norms",     "mHC",    "KDA",
                                                   "MLA + indexer",  "dense MLP", "router", "shared experts",
                                                   "routed experts", "MTP",       "vision"};
constexpr std::string_view kOther = "other";
constexpr std::string_view kText = "model.language_model.";
constexpr std::string_view kVision = "model.visual.";

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// Takes `start` away from the front of `text` if it is there.
bool take(std::string_view& text, std::string_view start) {
  if (!starts_with(text, start)) return false;
  text.remove_prefix(start.size());
  return true;
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> starts) {
  return std::any_of(starts.begin(), starts.end(), [&](std::string_view start) { return starts_with(text, start); });
}

std::string_view group_in_attention(std::string_view part) {
  if (starts_with_any(part, {"q_a_", "q_b_", "kv_a_", "kv_b_", "indexer."})) return "MLA + indexer";
  if (starts_with_any(part, {"q_proj.", "k_proj.", "v_proj.", "q_conv1d.", "k_conv1d.", "v_conv1d.", "f_a_", "f_b_",
                             "g_a_", "g_b_", "b_proj.", "A_log", "dt_bias", "o_norm."})) {
    return "KDA";
  }
  return kOther;
}

std::string_view group_in_mlp(std::string_view part) {
  if (starts_with(part, "gate.")) return "router";
  if (starts_with(part, "experts.")) return "routed experts";
  if (starts_with(part, "shared_experts.")) return "shared experts";
  if (starts_with_any(part, {"gate_proj.", "up_proj.", "down_proj."})) return "dense MLP";
  return kOther;
}

std::string_view group_in_layer(std::string_view part, AttentionKind attention) {
  if (starts_with(part, "hc_")) return "mHC";
  if (starts_with_any(part, {"input_layernorm.", "post_attention_layernorm."})) return "norms";
  if (take(part, "mlp.")) return group_in_mlp(part);
  if (!take(part, "self_attn.")) return kOther;
  // The output projection has one name in both kinds of attention.
  if (starts_with(part, "o_proj.")) return attention == AttentionKind::kKda ? "KDA" : "MLA + indexer";
  return group_in_attention(part);
}

/// The number in front of the next point, taken away with it.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != '.') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return number;
}

Total& total_named(std::vector<Total>& totals, std::string_view name) {
  const auto found = std::find_if(totals.begin(), totals.end(), [&](const Total& total) { return total.name == name; });
  if (found != totals.end()) return *found;
  totals.push_back({std::string(name)});
  return totals.back();
}

void count(Total& total, const Entry& entry, std::int64_t bytes) {
  ++total.tensors;
  total.parameters += entry.parameters;
  total.bytes += bytes;
}

}  // namespace

std::string group_of(const std::string& name, const ModelConfig& config) {
  std::string_view rest = name;
  std::string_view group = kOther;
  if (starts_with(rest, kVision)) {
    group = "vision";
  } else if (starts_with(rest, "lm_head.")) {
    group = "embedding";
  } else if (take(rest, kText)) {
    if (starts_with(rest, "embed_tokens.")) {
      group = "embedding";
    } else if (starts_with(rest, "norm.")) {
      group = "norms";
    } else if (take(rest, "layers.")) {
      const auto layer = take_number(rest);
      if (layer && *layer >= config.num_hidden_layers) {
        group = "MTP";
      } else if (layer && *layer >= 0) {
        group = group_in_layer(rest, config.layer_types[static_cast<std::size_t>(*layer)]);
      }
    }
  }
  return std::string(group);
}

Inventory inventory_of(const Checkpoint& checkpoint) {
  Inventory inventory;
  for (const std::string_view group : kGroups) inventory.groups.push_back({std::string(group)});
  inventory.all.name = "all";
  for (const auto& [name, tensor] : checkpoint.file.tensors()) {
    Entry entry{name, group_of(name, checkpoint.config), tensor.dtype(), tensor.shape(),
                ends_with(name, "_scale_inv") ? 0 : tensor.size()};
    const auto bytes = static_cast<std::int64_t>(tensor.bytes().size());
    count(total_named(inventory.dtypes, name_of(tensor.dtype())), entry, bytes);
    count(total_named(inventory.groups, entry.group), entry, bytes);
    count(inventory.all, entry, bytes);
    inventory.entries.push_back(std::move(entry));
  }
  return inventory;
}

}  // namespace assay::harness
