#include "harness/json_tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpfr.h>

#include "cases/error.h"
#include "cases/formats.h"

namespace assay::harness {
namespace {

using nlohmann::json;

constexpr std::size_t kMostDimensions = 16;

std::string shown(const json& value) {
  constexpr std::size_t kLongest = 40;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

class Reader {
 public:
  Reader(const std::string& where, DType dtype) : where_(where), dtype_(dtype) {}

  Tensor read(const json& values) {
    for (const json* level = &values; level->is_array(); level = &level->front()) {
      shape_.push_back(static_cast<std::int64_t>(level->size()));
      if (shape_.size() > kMostDimensions) {
        throw InputError(where_, fmt::format("more than {} dimensions", kMostDimensions), "fewer are needed");
      }
      if (level->empty()) break;
    }
    take(values, 0);
    return is_real(dtype_) ? Tensor::from_reals(dtype_, shape_, reals_)
                           : Tensor::from_integers(dtype_, shape_, integers_);
  }

 private:
  [[noreturn]] void fail(const std::string& found, const std::string& allowed) const {
    std::string position;
    for (const std::int64_t i : index_) position += fmt::format("[{}]", i);
    throw InputError(position.empty() ? where_ : where_ + " at " + position, found, allowed);
  }

  void take(const json& value, std::size_t depth) {
    if (depth == shape_.size()) {
      if (value.is_array()) fail("an array", "a value is needed, as before it");
      if (is_real(dtype_)) {
        reals_.push_back(real(value));
      } else {
        integers_.push_back(integer(value));
      }
      return;
    }
    if (!value.is_array()) fail(shown(value), fmt::format("an array of {} is needed, as before it", shape_[depth]));
    if (static_cast<std::int64_t>(value.size()) != shape_[depth]) {
      fail(fmt::format("an array of {}", value.size()),
           fmt::format("an array of {} is needed, as before it", shape_[depth]));
    }
    index_.push_back(0);
    for (const json& entry : value) {
      take(entry, depth + 1);
      ++index_.back();
    }
    index_.pop_back();
  }

  double real(const json& value) const {
    std::optional<double> number;
    if (value.is_number_float()) {
      number = value.get<double>();
    } else if (value.is_number_unsigned()) {
      number = exact(value.get<std::uint64_t>());
    } else if (value.is_number_integer()) {
      number = exact(value.get<std::int64_t>());
    } else if (value.is_string()) {
      number = double_from_text(value.get<std::string>());
    } else {
      fail(shown(value), "a number is needed");
    }
    if (!number) {
      fail(shown(value), "a number that a double holds, \"0x1.8p-3\", \"nan\", \"inf\" or \"-inf\" is needed");
    }
    require_value_of_dtype(value, *number);
    return *number;
  }

  template <class Integer>
  static std::optional<double> exact(Integer value) {
    const auto number = static_cast<double>(value);
    // 2^63 and 2^64 are doubles that no integer of their type equals.
    if (number >= std::ldexp(1.0, std::numeric_limits<Integer>::digits)) return std::nullopt;
    return static_cast<Integer>(number) == value ? std::optional<double>(number) : std::nullopt;
  }

  void require_value_of_dtype(const json& value, double number) const {
    const Format* format = format_of(dtype_);
    if (format == nullptr) return;
    const double kept = rounded(*format, number);
    if (kept == number || (std::isnan(kept) && std::isnan(number))) return;
    fail(shown(value), fmt::format("a value of {} is needed, the nearest is {:a}", format->name, kept));
  }

  std::int64_t integer(const json& value) const {
    const bool too_large = value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{1} << 62U;
    if (!value.is_number_integer() || too_large) fail(shown(value), "an integer is needed");
    const auto number = value.get<std::int64_t>();
    try {
      static_cast<void>(Tensor::from_integers(dtype_, {}, {&number, 1}));
    } catch (const InputError&) {
      fail(shown(value), fmt::format("an integer of {} is needed", name_of(dtype_)));
    }
    return number;
  }

  const std::string& where_;
  const DType dtype_;
  Shape shape_;
  std::vector<std::int64_t> index_;
  std::vector<double> reals_;
  std::vector<std::int64_t> integers_;
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

}  // namespace

Tensor tensor_from_json(const std::string& where, const json& values, DType dtype) {
  return Reader(where, dtype).read(values);
}

std::optional<double> double_from_text(const std::string& text) {
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  const std::size_t start = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  if (lower(text.substr(start, 2)) != "0x") return std::nullopt;
  // Four bits a digit: the number itself is never rounded, so that the comparison tells whether it is a double.
  mpfr_t number;
  mpfr_init2(number, static_cast<mpfr_prec_t>(4 * text.size() + 64));
  char* end = nullptr;
  mpfr_strtofr(number, text.c_str(), &end, 16, MPFR_RNDN);
  const double value = mpfr_get_d(number, MPFR_RNDN);
  const bool whole = end == text.c_str() + text.size() && text.find('@') == std::string::npos;
  const bool equal = std::isfinite(value) && mpfr_cmp_d(number, value) == 0;
  mpfr_clear(number);
  return whole && equal ? std::optional<double>(value) : std::nullopt;
}

DType dtype_from_text(const std::string& where, const std::string& text) {
  std::vector<std::string> allowed;
  for (int code = 0; code <= static_cast<int>(DType::kF64); ++code) {
    const auto dtype = static_cast<DType>(code);
    allowed.emplace_back(name_of(dtype));
    const Format* format = is_real(dtype) ? format_of(dtype) : nullptr;
    if (lower(text) == lower(allowed.back()) || (format != nullptr && lower(text) == format->name)) return dtype;
  }
  throw InputError(where, "'" + text + "'", fmt::format("allowed: {}", fmt::join(allowed, ", ")));
}

}  // namespace assay::harness
