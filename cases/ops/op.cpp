#include "cases/ops/op.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>
#include <type_traits>

#include <fmt/format.h>

#include "cases/error.h"
#include "cases/ops/attention.h"
#include "cases/ops/backward.h"
#include "cases/ops/dims.h"
#include "cases/ops/ffn.h"
#include "cases/ops/head.h"
#include "cases/ops/indexer.h"
#include "cases/ops/kda.h"
#include "cases/ops/layout.h"
#include "cases/ops/linear.h"
#include "cases/ops/mhc.h"
#include "cases/ops/norm.h"
#include "cases/ops/router.h"
#include "cases/ops/vision.h"

namespace assay {
namespace {

constexpr const char* kAnyLeading = "...";

/// `words` with `separator` between them. (fmt::join of GCC 12 at -O3 warns falsely: -Wstringop-overflow in fmt 9.)
std::string joined(const std::vector<std::string>& words, const std::string& separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

template <typename Specs>
std::string names_of(const Specs& specs) {
  std::vector<std::string> names;
  for (const auto& spec : specs) names.push_back(spec.name);
  return names.empty() ? std::string("none") : joined(names, ", ");
}

template <typename Specs>
bool has_name(const Specs& specs, const std::string& name) {
  return std::any_of(specs.begin(), specs.end(), [&](const auto& spec) { return spec.name == name; });
}

const char* allowed_text(AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kInteger:
      return "an integer is needed";
    case AttributeKind::kReal:
      return "a finite number is needed";
    case AttributeKind::kBool:
      return "true or false is needed";
    case AttributeKind::kText:
      return "a string is needed";
    case AttributeKind::kIntegers:
      return "a list of integers is needed";
  }
  ASSAY_CHECK(false);
  return "";
}

bool is_int64(const nlohmann::json& value) {
  if (!value.is_number_integer()) return false;
  return !value.is_number_unsigned() ||
         value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
}

bool has_kind(const nlohmann::json& value, AttributeKind kind) {
  switch (kind) {
    case AttributeKind::kInteger:
      return is_int64(value);
    case AttributeKind::kReal:
      return value.is_number() && std::isfinite(value.get<double>());
    case AttributeKind::kBool:
      return value.is_boolean();
    case AttributeKind::kText:
      return value.is_string();
    case AttributeKind::kIntegers:
      return value.is_array() && std::all_of(value.begin(), value.end(), is_int64);
  }
  ASSAY_CHECK(false);
  return false;
}

/// The work of make_call, with the name of the call for its messages.
class CallMaker {
 public:
  CallMaker(const OpSpec& spec, std::string path) : spec_(spec) {
    where_ = path.empty() ? "op " + spec.name : "op " + spec.name + " at " + path;
    call_.spec = &spec;
    call_.path = std::move(path);
  }

  OpCall make(const nlohmann::json& attributes, std::map<std::string, Tensor> inputs) {
    take_attributes(attributes);
    take_inputs(std::move(inputs));
    take_leading();
    bind_symbols();
    solve_unknowns();
    check_expressions();
    name_outputs();
    return std::move(call_);
  }

 private:
  struct Site {
    const OperandSpec* operand;
    std::size_t dimension;  ///< position in the tensor's shape
    DimensionWord word;
    std::int64_t size;
  };

  std::string at_attribute(const std::string& name) const { return where_ + ": attribute " + name; }
  std::string at_operand(const std::string& name) const { return where_ + ": operand " + name; }

  void take_attributes(const nlohmann::json& attributes) {
    if (!attributes.is_object() && !attributes.is_null()) {
      throw InputError(where_ + ": attributes", fmt::format("a JSON {}", attributes.type_name()),
                       "an object is needed");
    }
    for (const auto& [name, value] : attributes.items()) {
      if (!has_name(spec_.attributes, name)) {
        throw InputError(at_attribute(name), "unknown", "allowed: " + names_of(spec_.attributes));
      }
    }
    for (const AttributeSpec& attribute : spec_.attributes) {
      const bool may_be_null = attribute.fallback.has_value() && attribute.fallback->is_null();
      const bool given = attributes.is_object() && attributes.contains(attribute.name);
      if (!given && !attribute.fallback) {
        throw InputError(at_attribute(attribute.name), "missing", allowed_text(attribute.kind));
      }
      const nlohmann::json& value = given ? attributes.at(attribute.name) : *attribute.fallback;
      if (!(value.is_null() && may_be_null) && !has_kind(value, attribute.kind)) {
        throw InputError(at_attribute(attribute.name), value.dump(), allowed_text(attribute.kind));
      }
      call_.attributes[attribute.name] = value;
      if (attribute.kind == AttributeKind::kInteger && !value.is_null()) {
        call_.dims[attribute.name] = value.get<std::int64_t>();
        origin_[attribute.name] = "attribute " + attribute.name;
      }
    }
  }

  void take_inputs(std::map<std::string, Tensor> inputs) {
    for (const auto& [name, tensor] : inputs) {
      if (!has_name(spec_.inputs, name)) {
        throw InputError(at_operand(name), "unknown", "allowed: " + names_of(spec_.inputs));
      }
    }
    for (const OperandSpec& operand : spec_.inputs) {
      const auto found = inputs.find(operand.name);
      if (found == inputs.end()) {
        if (operand.optional) continue;
        throw InputError(at_operand(operand.name), "missing", fmt::format("a tensor [{}] is needed", operand.dims));
      }
      const Tensor& tensor = found->second;
      const bool real = operand.kind == OperandKind::kReal;
      if (is_real(tensor.dtype()) != real) {
        throw InputError(at_operand(operand.name), fmt::format("dtype {}", name_of(tensor.dtype())),
                         real ? "a number format is needed" : "an integer type is needed");
      }
      take_words(operand, tensor);
    }
    call_.inputs = std::move(inputs);
  }

  /// Checks the number of dimensions and notes one Site per named dimension.
  void take_words(const OperandSpec& operand, const Tensor& tensor) {
    std::vector<std::string> words = dimension_words(operand.dims);
    const bool leading = !words.empty() && words.front() == kAnyLeading;
    if (leading) words.erase(words.begin());
    const std::size_t rank = tensor.shape().size();
    if (leading ? rank < words.size() : rank != words.size()) {
      throw InputError(at_operand(operand.name), "shape " + to_string(tensor.shape()),
                       fmt::format("[{}] is needed", operand.dims));
    }
    const std::size_t first = rank - words.size();
    if (leading) {
      leading_.emplace_back(&operand, Shape(tensor.shape().begin(), tensor.shape().begin() + std::ptrdiff_t(first)));
    }
    for (std::size_t i = 0; i < words.size(); ++i) {
      sites_.push_back({&operand, first + i, DimensionWord(words[i]), tensor.shape()[first + i]});
    }
  }

  void take_leading() {
    for (const auto& [operand, shape] : leading_) {
      const auto& [first_operand, first_shape] = leading_.front();
      if (shape != first_shape) {
        throw InputError(at_operand(operand->name), "leading dimensions " + to_string(shape),
                         fmt::format("operand {} has {}", first_operand->name, to_string(first_shape)));
      }
    }
  }

  [[noreturn]] void misfit(const Site& site, const std::string& allowed) const {
    throw InputError(at_operand(site.operand->name),
                     fmt::format("dimension {} ({}) is {}", site.dimension, site.word.text(), site.size), allowed);
  }

  void bind(const Site& site, const std::string& symbol, std::int64_t value) {
    const auto [entry, inserted] = call_.dims.emplace(symbol, value);
    if (inserted) {
      origin_[symbol] = "operand " + site.operand->name;
    } else if (entry->second != value) {
      misfit(site, fmt::format("{} = {} by {}", symbol, entry->second, origin_.at(symbol)));
    }
  }

  void bind_symbols() {
    for (const Site& site : sites_) {
      if (site.word.name()) bind(site, *site.word.name(), site.size);
    }
  }

  /// "S+1" gives S when no operand has a dimension S.
  void solve_unknowns() {
    for (bool again = true; again;) {
      again = false;
      for (const Site& site : sites_) {
        const auto unknown = located([&] { return site.word.unknown(call_.dims); });
        if (!unknown) continue;
        const auto value = located([&] { return site.word.solve(*unknown, site.size, call_.dims); });
        if (!value) misfit(site, fmt::format("no size {} gives that", *unknown));
        bind(site, *unknown, *value);
        again = true;
      }
    }
  }

  void check_expressions() const {
    for (const Site& site : sites_) {
      if (site.word.is_symbol()) continue;
      const auto value = expression_value(site.word);
      if (!value || *value == site.size) continue;
      misfit(site, fmt::format("{} is needed", *value));
    }
  }

  /// Adds the name of the call to what went wrong inside an expression.
  template <typename Function>
  std::invoke_result_t<Function> located(const Function& function) const {
    try {
      return function();
    } catch (const InputError& error) {
      throw InputError(where_ + ": " + error.what());
    }
  }

  std::optional<std::int64_t> expression_value(const DimensionWord& word) const {
    return located([&] { return word.value(call_.dims); });
  }

  /// Names that only outputs use ("k=topk") are bound too; a negative size can only come from an attribute.
  void name_outputs() {
    for (const OperandSpec& output : spec_.outputs) {
      for (const std::string& text : dimension_words(output.dims)) {
        if (text == kAnyLeading) continue;
        const DimensionWord word(text);
        const auto value = expression_value(word);
        if (!value) continue;
        if (*value < 0) {
          throw InputError(where_ + ": output " + output.name, fmt::format("dimension {} would be {}", text, *value),
                           "sizes are not negative");
        }
        if (word.name()) call_.dims.emplace(*word.name(), *value);
      }
    }
  }

  const OpSpec& spec_;
  std::string where_;
  OpCall call_;
  std::map<std::string, std::string> origin_;  ///< what bound each symbol
  std::vector<Site> sites_;
  std::vector<std::pair<const OperandSpec*, Shape>> leading_;
};

}  // namespace

const std::vector<OpSpec>& op_specs() {
  static const std::vector<OpSpec> all = [] {
    std::vector<OpSpec> specs;
    for (const auto* family : {&head_ops(), &mhc_ops(), &norm_ops(), &linear_ops(), &kda_ops(), &indexer_ops(),
                               &attention_ops(), &router_ops(), &ffn_ops(), &vision_ops(), &layout_ops()}) {
      specs.insert(specs.end(), family->begin(), family->end());
    }
    const std::vector<OpSpec> twins = backward_specs(specs);
    specs.insert(specs.end(), twins.begin(), twins.end());
    return specs;
  }();
  return all;
}

const OpSpec& op_named(std::string_view name) {
  std::vector<std::tuple<std::size_t, std::string>> nearest;
  for (const OpSpec& spec : op_specs()) {
    if (spec.name == name) return spec;
    nearest.emplace_back(edit_distance(name, spec.name), spec.name);
  }
  constexpr std::size_t kNearest = 3;
  std::sort(nearest.begin(), nearest.end());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(kNearest, nearest.size()); ++i) names.push_back(std::get<1>(nearest[i]));
  throw InputError(fmt::format("op {}", name), "unknown", "nearest: " + joined(names, ", "));
}

OpCall make_call(const OpSpec& spec, const nlohmann::json& attributes, std::map<std::string, Tensor> inputs,
                 std::string path) {
  return CallMaker(spec, std::move(path)).make(attributes, std::move(inputs));
}

std::optional<Shape> output_shape(const OpCall& call, const OperandSpec& output) {
  Shape shape;
  for (const std::string& text : dimension_words(output.dims)) {
    if (text != kAnyLeading) {
      const auto value = DimensionWord(text).value(call.dims);
      if (!value) return std::nullopt;
      shape.push_back(*value);
      continue;
    }
    // The leading dimensions are those of any input that has some.
    const auto has_leading = [&](const OperandSpec& input) {
      const auto words = dimension_words(input.dims);
      return !words.empty() && words.front() == kAnyLeading && call.inputs.count(input.name) != 0;
    };
    const auto& inputs = call.spec->inputs;
    const auto source = std::find_if(inputs.begin(), inputs.end(), has_leading);
    if (source == inputs.end()) return std::nullopt;
    const Shape& full = call.inputs.at(source->name).shape();
    const std::size_t trailing = dimension_words(source->dims).size() - 1;
    shape.assign(full.begin(), full.end() - std::ptrdiff_t(trailing));
  }
  return shape;
}

}  // namespace assay
