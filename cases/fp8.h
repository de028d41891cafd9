// Block-scaled FP8 as a training run uses it: the quantiser of each operand, the modules that are quantised at all, and
// the sizes that FP8 products accept. Source: shared/spec/megatron.md 5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cases/formats.h"

namespace assay {

/// Settings of Transformer Engine's Float8BlockScaling recipe.
struct BlockRecipe {
  bool hybrid = true;                   ///< gradients in E5M2; false: all in E4M3
  bool power_of_two = true;             ///< false: NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1
  bool guard_backward_gradient = true;  ///< Megatron-LM #7523: gradients have a floor under the block maximum
};

enum class QuantizerRole { kForwardInput, kForwardWeight, kBackwardGradient };

/// Attributes of the op quantize_block.
struct BlockQuantizer {
  const Format* format;
  std::int64_t block_rows;
  std::int64_t block_columns;
  bool power_of_two;
  double amax_epsilon;
};

/// megatron.md 5.1 (tiles, formats) and 5.2 (only gradients are guarded).
BlockQuantizer block_quantizer(const BlockRecipe& recipe, QuantizerRole role);
nlohmann::json attributes_of(const BlockQuantizer& quantizer);

/// One row of megatron.md 5.3.
struct Fp8ModuleRule {
  std::vector<std::string> modules;  ///< components of a module's name; a trailing * matches any ending
  std::vector<std::string> bf16_if;  ///< names of one flag, one of them given: BF16 if it is true
  std::optional<bool> quantised;     ///< without a flag, or with it false; nothing: the rows below decide
  std::string reason;
};

/// The table; the first row that matches and decides counts.
const std::vector<Fp8ModuleRule>& fp8_module_rules();

struct Fp8Placement {
  bool quantised;
  std::string reason;
};

/// Whether the module of this Megatron name ("decoder.layers.4.self_attention.in_proj") multiplies in FP8. `flags`: an
/// object of flag values by Megatron's names. "BF16" means not quantised: the dtype is still the model's. Throws
/// InputError for a name that has no matrix product in the table, and for a flag that the row needs and that is absent
/// or no boolean.
Fp8Placement fp8_placement(std::string_view module, const nlohmann::json& flags);

/// Multiple that the sizes of an FP8 product are padded to: 16, under the recipe "mxfp8" 32. Recipes as in Megatron's
/// --fp8-recipe: delayed, tensorwise, blockwise, mxfp8; otherwise InputError.
std::int64_t fp8_padding(std::string_view recipe);

/// Multiple of the tokens of one tensor-parallel rank (public report T67).
inline constexpr std::int64_t kFp8TokenMultiple = 8;

/// "T=4088, TP=2: 2044 % 8 = 4" if a rank's part of `size` is no multiple, nothing if it is. `symbol` names the size.
/// Throws InputError for numbers below 1 (size: below 0).
std::optional<std::string> alignment_fault(std::string_view symbol, std::int64_t size, std::int64_t tp_size,
                                           std::int64_t multiple);

/// Refuses `tokens` with that fault as InputError, and names the padded number.
void check_fp8_tokens(std::int64_t tokens, std::int64_t tp_size);

/// The least number of at least `tokens` tokens that is aligned on each of `tp_size` ranks.
std::int64_t padded_fp8_tokens(std::int64_t tokens, std::int64_t tp_size);

}  // namespace assay
