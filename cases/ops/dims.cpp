#include "cases/ops/dims.h"

#include <cctype>
#include <set>
#include <sstream>

#include "cases/error.h"

namespace assay {
namespace {

using Dims = std::map<std::string, std::int64_t>;

bool starts_symbol(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Recursive descent over one expression. Unbound symbols are collected; the value is then meaningless.
class Evaluator {
 public:
  Evaluator(const std::string& text, const Dims& dims) : text_(text), dims_(dims) {}

  std::int64_t run() {
    const std::int64_t value = sum();
    ASSAY_CHECK(at_ == text_.size());
    return value;
  }
  const std::set<std::string>& unbound() const { return unbound_; }
  bool has_ceil() const { return has_ceil_; }

 private:
  bool accept(char c) {
    if (at_ < text_.size() && text_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }

  std::int64_t checked(bool overflow, std::int64_t value) const {
    if (overflow) throw InputError("dimension " + text_, "the value overflows 64 bits", "smaller sizes are needed");
    return value;
  }

  std::int64_t sum() {
    std::int64_t value = product();
    while (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) {
      const bool plus = text_[at_++] == '+';
      const std::int64_t term = product();
      std::int64_t next = 0;
      const bool overflow =
          plus ? __builtin_add_overflow(value, term, &next) : __builtin_sub_overflow(value, term, &next);
      value = checked(overflow, next);
    }
    return value;
  }

  std::int64_t product() {
    std::int64_t value = factor();
    while (accept('*')) {
      std::int64_t next = 0;
      const bool overflow = __builtin_mul_overflow(value, factor(), &next);
      value = checked(overflow, next);
    }
    return value;
  }

  std::int64_t factor() {
    ASSAY_CHECK(at_ < text_.size());
    if (is_digit(text_[at_])) {
      std::int64_t value = 0;
      while (at_ < text_.size() && is_digit(text_[at_])) value = value * 10 + (text_[at_++] - '0');
      return value;
    }
    ASSAY_CHECK(starts_symbol(text_[at_]));
    std::string symbol;
    while (at_ < text_.size() && (starts_symbol(text_[at_]) || is_digit(text_[at_]))) symbol += text_[at_++];
    if (symbol == "ceil") return ceiling();
    const auto found = dims_.find(symbol);
    if (found == dims_.end()) {
      unbound_.insert(symbol);
      return 1;
    }
    return found->second;
  }

  std::int64_t ceiling() {
    has_ceil_ = true;
    ASSAY_CHECK(accept('('));
    const std::int64_t dividend = factor();
    ASSAY_CHECK(accept('/'));
    const std::int64_t divisor = factor();
    ASSAY_CHECK(accept(')'));
    if (divisor <= 0) {
      throw InputError("dimension " + text_, "the divisor is " + std::to_string(divisor), "it must be at least 1");
    }
    return dividend / divisor + (dividend % divisor > 0 ? 1 : 0);
  }

  const std::string& text_;
  const Dims& dims_;
  std::size_t at_ = 0;
  std::set<std::string> unbound_;
  bool has_ceil_ = false;
};

}  // namespace

std::vector<std::string> dimension_words(std::string_view dims) {
  std::istringstream stream{std::string(dims)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

DimensionWord::DimensionWord(std::string_view word) : text_(word) {
  ASSAY_CHECK(!text_.empty());
  const std::size_t equals = text_.find('=');
  const std::string left = text_.substr(0, equals);
  bool symbol = starts_symbol(left[0]);
  for (const char c : left) symbol = symbol && (starts_symbol(c) || is_digit(c));
  ASSAY_CHECK(symbol || equals == std::string::npos);
  if (symbol) name_ = left;
  if (equals != std::string::npos) expression_ = text_.substr(equals + 1);
  if (!symbol) expression_ = text_;
}

std::optional<std::int64_t> DimensionWord::value(const Dims& dims) const {
  if (is_symbol()) {
    const auto found = dims.find(*name_);
    return found == dims.end() ? std::nullopt : std::optional<std::int64_t>(found->second);
  }
  Evaluator evaluator(expression_, dims);
  const std::int64_t value = evaluator.run();
  return evaluator.unbound().empty() ? std::optional<std::int64_t>(value) : std::nullopt;
}

std::optional<std::string> DimensionWord::unknown(const Dims& dims) const {
  if (is_symbol()) return std::nullopt;
  Evaluator evaluator(expression_, dims);
  evaluator.run();
  if (evaluator.unbound().size() != 1 || evaluator.has_ceil()) return std::nullopt;
  const std::string symbol = *evaluator.unbound().begin();
  Dims trial = dims;
  std::int64_t at[3] = {};
  for (std::int64_t x = 0; x < 3; ++x) {
    trial[symbol] = x;
    at[x] = Evaluator(expression_, trial).run();
  }
  const bool linear = at[2] - at[1] == at[1] - at[0] && at[1] != at[0];
  return linear ? std::optional<std::string>(symbol) : std::nullopt;
}

std::optional<std::int64_t> DimensionWord::solve(const std::string& unknown, std::int64_t dimension, Dims dims) const {
  dims[unknown] = 0;
  const std::int64_t offset = Evaluator(expression_, dims).run();
  dims[unknown] = 1;
  const std::int64_t slope = Evaluator(expression_, dims).run() - offset;
  const std::int64_t rest = dimension - offset;
  if (slope == 0 || rest % slope != 0 || rest / slope < 0) return std::nullopt;
  return rest / slope;
}

}  // namespace assay
