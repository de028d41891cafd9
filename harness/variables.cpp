#include "harness/variables.h"

namespace assay::harness {

std::string replaced(std::string text, const std::string& variable, std::int64_t value) {
  const std::string word = "{" + variable + "}";
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at))
    text.replace(at, word.size(), std::to_string(value));
  return text;
}

}  // namespace assay::harness
