// The little language of OperandSpec::dims: one expression per dimension.
// expression = [symbol "="] term {("+" | "-") term}; term = factor {"*" factor};
// factor = number | symbol | "ceil(" factor "/" factor ")".
// "Rb=ceil(R/block_rows)" gives the dimension a name of its own and says what it must equal.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

/// The words of `dims`, "..." included.
std::vector<std::string> dimension_words(std::string_view dims);

/// One word other than "...". Aborts on a malformed word (words are constants of this program).
class DimensionWord {
 public:
  explicit DimensionWord(std::string_view word);

  const std::string& text() const { return text_; }
  /// The symbol that names this dimension ("T", or "Rb" in "Rb=ceil(R/block_rows)"), if any.
  const std::optional<std::string>& name() const { return name_; }
  /// True for a bare symbol: nothing to check against but the other uses of it.
  bool is_symbol() const { return expression_.empty(); }

  /// Value under `dims`; nothing if a symbol is unbound. Throws InputError on overflow or a division by zero.
  std::optional<std::int64_t> value(const std::map<std::string, std::int64_t>& dims) const;

  /// The only unbound symbol of the expression, if exactly one is unbound and the expression is linear in it.
  std::optional<std::string> unknown(const std::map<std::string, std::int64_t>& dims) const;
  /// The value of `unknown` that makes the expression equal `dimension`, if there is a non-negative one.
  std::optional<std::int64_t> solve(const std::string& unknown, std::int64_t dimension,
                                    std::map<std::string, std::int64_t> dims) const;

 private:
  std::string text_;
  std::optional<std::string> name_;
  std::string expression_;  ///< empty for a bare symbol
};

}  // namespace assay
