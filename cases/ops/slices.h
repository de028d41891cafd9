// Along which symbols the elements of an output are independent. Slicing the operands along them gives a smaller call
// of the same op whose output is exactly the chosen elements (design section 2: large ops are judged by sampling).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cases/ops/op.h"

namespace assay {

/// What a slice of one symbol asks of the operands besides slicing them along it.
enum class SliceCompanion {
  kNone,
  kValueHeads,     ///< of Hv: every value head keeps a copy of its key head, of H (groups of one)
  kKeyHeads,       ///< of H: a key head keeps its whole group of value heads, of Hv
  kGroupedRows,    ///< of M: only experts E with a chosen row are kept; `offsets` is counted anew
  kGroups,         ///< of E: an expert keeps all its rows, of M; `offsets` is counted anew
  kCountedLabels,  ///< of T: at least one row must have a label that counts
  kSelectedRows,   ///< of T: only rows V that a chosen id names are kept; `ids` are renumbered
  kScaleBlocks,    ///< of N: `w_scales` keeps the rows Nb of the chosen blocks
  kLossRows,  ///< of T: the attribute `rows`, if null, becomes the number of rows of the whole call that see a token
};

/// One symbol to slice along.
struct Slice {
  std::string symbol;  ///< "...": the rows that the leading dimensions make
  /// If not empty, the symbol whose value is the size of a block (of "a|b" the first that the call has): only whole
  /// blocks are chosen.
  std::string block;
};

struct SliceRule {
  std::string op;
  std::string outputs;  ///< names separated by blanks
  std::vector<Slice> slices;
  std::vector<std::string> unused;  ///< symbols that the outputs do not depend on: one index of each is enough
  SliceCompanion companion = SliceCompanion::kNone;
  /// For estimates of work: of a symbol that an index operand selects from, one part reads as many places as the
  /// value of `block` says.
  std::vector<Slice> gathered = {};
  std::string only_without = {};  ///< the rule does not hold for calls that have this operand
};

/// All rules; an output without one needs the whole call. Of several that hold for an output the first is meant.
const std::vector<SliceRule>& slice_rules();
/// The rule for an output of a call, if there is one. Throws InputError if the op has no such output.
const SliceRule* slice_rule(const OpCall& call, std::string_view output);

/// The chosen places of each sliced symbol.
struct Selection {
  std::map<std::string, std::vector<std::int64_t>> elements;
  std::map<std::string, std::vector<std::int64_t>> blocks;  ///< of symbols chosen in blocks: the same as block numbers
};

/// The places that a selection takes on an axis whose size is `word` (one word of OperandSpec::dims, not "...") under
/// the dims of the whole call; nothing: the whole axis. On an axis "H*D" a place of H is a block of D.
std::optional<std::vector<std::int64_t>> sliced_axis(const std::string& word,
                                                     const std::map<std::string, std::int64_t>& dims,
                                                     const Selection& selection);

}  // namespace assay
