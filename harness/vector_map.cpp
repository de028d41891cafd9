#include "harness/vector_map.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <set>

#include <fmt/format.h>

#include "cases/error.h"
#include "harness/variables.h"

namespace assay::harness {
namespace {

using nlohmann::json;

/// Evaluates the expressions of one call of one case.
class Reader {
 public:
  Reader(const std::filesystem::path& file, const VectorCase& vector_case) : file_(file), case_(vector_case) {}

  std::map<std::string, std::int64_t> variables;

  [[noreturn]] void fail(const std::string& what, const std::string& found, const std::string& allowed) const {
    throw InputError(fmt::format("{}: group {}, case {}: {}", file_.string(), case_.group, case_.name, what), found,
                     allowed);
  }

  std::string name(std::string text) const {
    for (const auto& [variable, value] : variables) text = replaced(std::move(text), variable, value);
    return text;
  }

  bool has(const std::string& tensor) const { return case_.tensors.count(name(tensor)) != 0; }

  const Tensor& tensor(const std::string& text) const {
    const auto found = case_.tensors.find(name(text));
    if (found == case_.tensors.end()) fail("tensor " + name(text), "missing", "the map needs it");
    return found->second;
  }

  json value(const json& expression) const {
    if (expression.is_object() && expression.contains("map")) return mapped(expression);
    if (!expression.is_string()) return expression;
    const std::string text = expression;
    if (const std::size_t bar = text.find('|'); bar != std::string::npos) {
      const json first = value(text.substr(0, bar));
      return first.is_null() ? json::parse(text.substr(bar + 1)) : first;
    }
    if (text.rfind("not ", 0) == 0) return !truth(text.substr(4));
    if (text.rfind("has(", 0) == 0 && text.back() == ')') return has(text.substr(4, text.size() - 5));
    if (text.rfind("dtype(", 0) == 0) {
      const std::size_t close = text.find(")==");
      if (close == std::string::npos) fail("expression " + text, "unknown form", "dtype(tensor)==F32");
      return name_of(tensor(text.substr(6, close - 6)).dtype()) == text.substr(close + 3);
    }
    if (text.rfind('$', 0) == 0) {
      const std::string word = text.substr(1);
      if (const auto found = variables.find(word); found != variables.end()) return found->second;
      return case_.flags.contains(word) ? case_.flags.at(word) : json();
    }
    if (text.rfind('@', 0) == 0) return dimension(text.substr(1));
    return text;
  }

  std::int64_t integer(const json& expression) const {
    const json result = value(expression);
    if (!result.is_number_integer()) fail("expression " + expression.dump(), result.dump(), "an integer is needed");
    return result;
  }

  json list(const json& expression) const {
    json result = value(expression);
    if (!result.is_array()) fail("expression " + expression.dump(), result.dump(), "a list is needed");
    return result;
  }

  bool truth(const json& expression) const {
    const json result = value(expression);
    if (result.is_null()) return false;
    if (!result.is_boolean()) fail("expression " + expression.dump(), result.dump(), "true or false is needed");
    return result;
  }

  /// The operand a binding makes, or nothing if it is optional and absent.
  std::optional<Tensor> operand(const json& binding) const {
    if (binding.is_string()) return tensor(binding);
    if (binding.contains("when") && !truth(binding.at("when"))) return std::nullopt;
    if (binding.value("optional", false) && !has(binding.at("tensor"))) return std::nullopt;
    Tensor result;
    if (binding.contains("concat")) {
      result = concatenated(binding.at("concat"));
    } else if (binding.contains("values")) {
      std::vector<std::int64_t> values;
      for (const json& entry : flattened(binding.at("values"))) values.push_back(integer(entry));
      result = Tensor::from_integers(DType::kI64, {static_cast<std::int64_t>(values.size())}, values);
    } else if (binding.contains("cumulative")) {
      std::vector<std::int64_t> edges{0};
      for (const json& length : list(binding.at("cumulative"))) edges.push_back(edges.back() + integer(length));
      result = Tensor::from_integers(DType::kI64, {static_cast<std::int64_t>(edges.size())}, edges);
    } else {
      result = tensor(binding.at("tensor"));
    }
    if (binding.contains("as")) result = seen_as(result, binding.at("as"));
    return laid_out(result, binding);
  }

  Tensor laid_out(Tensor result, const json& binding) const {
    if (binding.contains("select")) {
      const std::int64_t axis = integer(binding.at("select").at(0)), at = integer(binding.at("select").at(1));
      std::vector<int> front{static_cast<int>(axis)};
      Shape rest;
      for (std::size_t i = 0; i < result.shape().size(); ++i) {
        if (static_cast<std::int64_t>(i) == axis) continue;
        front.push_back(static_cast<int>(i));
        rest.push_back(result.shape()[i]);
      }
      result = result.permuted(front).rows(at, at + 1).reshaped(rest);
    }
    if (binding.contains("order")) result = result.permuted(binding.at("order").get<std::vector<int>>());
    if (binding.contains("shape")) result = result.reshaped(shape(binding.at("shape"), result.size()));
    return result;
  }

  Tensor concatenated(const json& names) const {
    std::vector<double> values;
    const DType dtype = tensor(names.at(0)).dtype();
    for (const json& entry : names) {
      const Tensor& part = tensor(entry);
      if (part.dtype() != dtype)
        fail("concat of " + entry.get<std::string>(), std::string(name_of(part.dtype())),
             "the dtype of the first, " + std::string(name_of(dtype)));
      const std::vector<double> reals = part.reals();
      values.insert(values.end(), reals.begin(), reals.end());
    }
    return Tensor::from_reals(dtype, {static_cast<std::int64_t>(values.size())}, values);
  }

 private:
  json mapped(const json& expression) const {
    const json key = value(expression.at("map"));
    const json& to = expression.at("to");
    const std::string word = key.is_string() ? key.get<std::string>() : key.dump();
    if (!to.contains(word)) fail("expression " + expression.dump(), word, "the map has no such word");
    return to.at(word);
  }

  Tensor seen_as(const Tensor& bytes, const json& expression) const {
    const std::string word = value(expression);
    const std::optional<DType> dtype = dtype_named(word);
    if (!dtype || size_of(*dtype) != size_of(bytes.dtype())) {
      fail("binding as " + expression.dump(), word, "a dtype as wide as the tensor's");
    }
    return Tensor::view(*dtype, bytes.shape(), bytes.bytes(), std::make_shared<Tensor>(bytes));
  }

  /// A single expression may stand for a list (a flag that holds one).
  json flattened(const json& entries) const {
    json list = json::array();
    for (const json& entry : entries) {
      const json result = value(entry);
      if (result.is_array()) {
        for (const json& inner : result) list.push_back(inner);
      } else {
        list.push_back(result);
      }
    }
    return list;
  }

  std::int64_t dimension(const std::string& text) const {
    const std::size_t slash = text.find('/');
    const std::string left = text.substr(0, slash);
    const std::size_t dot = left.rfind('.');
    const std::string digits = dot == std::string::npos ? "" : left.substr(dot + 1);
    if (digits.size() != 1 || digits.front() < '0' || digits.front() > '9')
      fail("expression @" + text, "unknown form", "@tensor.axis or @tensor.axis/expression");
    const Tensor& t = tensor(left.substr(0, dot));
    const auto axis = static_cast<std::size_t>(digits.front() - '0');
    if (axis >= t.shape().size()) fail("expression @" + text, to_string(t.shape()), "the tensor has no such dimension");
    if (slash == std::string::npos) return t.shape()[axis];
    const std::int64_t divisor = integer(text.substr(slash + 1));
    if (divisor == 0 || t.shape()[axis] % divisor != 0) {
      fail("expression @" + text, std::to_string(t.shape()[axis]), "a multiple of " + std::to_string(divisor));
    }
    return t.shape()[axis] / divisor;
  }

  Shape shape(const json& entries, std::int64_t size) const {
    Shape result;
    std::int64_t known = 1, open = -1;
    for (const json& entry : entries) {
      const std::int64_t extent = integer(entry);
      if (extent == -1) open = static_cast<std::int64_t>(result.size());
      if (extent != -1) known *= extent;
      result.push_back(extent);
    }
    if (open >= 0) result[static_cast<std::size_t>(open)] = known == 0 ? 0 : size / known;
    return result;
  }

  const std::filesystem::path& file_;
  const VectorCase& case_;
};

/// Runs `body` for all values of the rule's repeat variables.
void repeat(Reader& reader, const json& rule, const json& loops, std::size_t depth, const std::function<void()>& body) {
  if (depth == loops.size()) {
    body();
    return;
  }
  const json& loop = loops.at(depth);
  json values = loop.contains("in") ? reader.list(loop.at("in")) : json::array();
  if (loop.contains("count")) {
    std::int64_t count = 1;
    for (const json& factor : loop.at("count").is_array() ? loop.at("count") : json::array({loop.at("count")}))
      count *= reader.integer(factor);
    for (std::int64_t i = 0; i < count; ++i) values.push_back(i);
  }
  for (const json& value : values) {
    reader.variables[loop.at("variable")] = reader.integer(value);
    repeat(reader, rule, loops, depth + 1, body);
  }
}

VectorCall make(const Reader& reader, const json& rule, const VectorCase& vector_case, std::set<std::string>& claimed) {
  json attributes = json::object();
  const json wanted = rule.value("attributes", json::object());
  for (const auto& [attribute, expression] : wanted.items()) attributes[attribute] = reader.value(expression);
  std::map<std::string, Tensor> inputs;
  for (const auto& [operand, binding] : rule.at("inputs").items()) {
    std::optional<Tensor> tensor = reader.operand(binding);
    if (tensor) inputs.emplace(operand, std::move(*tensor));
  }
  const OpSpec& spec = op_named(rule.at("op").get<std::string>());
  for (const OperandSpec& operand : spec.inputs) {
    // An unstored empty tensor has no dtype of its own.
    const auto found = inputs.find(operand.name);
    if (found != inputs.end() && found->second.size() == 0)
      found->second =
          Tensor::zeros(operand.kind == OperandKind::kIndex ? DType::kI64 : DType::kF32, found->second.shape());
  }
  VectorCall made;
  made.call = make_call(spec, attributes, std::move(inputs), vector_case.name);
  made.report = rule.value("report", "");
  made.profile = rule.value("profile", "");
  const json switches = rule.value("flags", json::object());
  for (const auto& [flag, expression] : switches.items()) made.flags.set(flag, reader.value(expression));
  const bool is_choice = rule.contains("choice");
  const json& outputs = is_choice ? rule.at("choice") : rule.at("outputs");
  for (const auto& [output, bound] : outputs.items()) {
    const json targets = bound.is_array() ? bound : json::array({bound});
    for (const json& target : targets) {
      std::vector<std::string> names;
      if (target.is_object() && target.contains("concat")) {
        for (const json& part : target.at("concat")) names.push_back(reader.name(part));
      } else {
        names.push_back(reader.name(target.is_string() ? target : target.at("tensor")));
      }
      if (!std::all_of(names.begin(), names.end(), [&](const std::string& name) { return reader.has(name); })) continue;
      claimed.insert(names.begin(), names.end());
      Tensor tensor = names.size() == 1 ? reader.tensor(names.front()) : reader.concatenated(names);
      if (target.is_object()) tensor = reader.laid_out(std::move(tensor), target);
      made.outputs.push_back(
          {output, fmt::format("{}.{}", vector_case.name, fmt::join(names, "+")), std::move(tensor), is_choice});
    }
  }
  return made;
}

/// Tensors without elements are not stored: the flag empty_tensors lists them as "name:[dimensions]".
void add_empty_tensors(const std::filesystem::path& file, VectorCase& vector_case) {
  const json listed = vector_case.flags.value("empty_tensors", json::array());
  for (const json& entry : listed) {
    const std::string text = entry.is_string() ? entry.get<std::string>() : std::string();
    const std::size_t colon = text.find(':');
    const json dims = colon == std::string::npos ? json() : json::parse(text.substr(colon + 1), nullptr, false);
    Shape shape;
    if (dims.is_array())
      for (const json& dim : dims) shape.push_back(dim.is_number_unsigned() ? dim.get<std::int64_t>() : -1);
    const auto holds = [&](std::int64_t extent) { return std::count(shape.begin(), shape.end(), extent) > 0; };
    if (colon == std::string::npos || holds(-1) || !holds(0)) {
      throw InputError(fmt::format("{}: case {}: flag empty_tensors", file.string(), vector_case.name), entry.dump(),
                       "\"name:[dimensions]\" with a dimension 0 is needed");
    }
    vector_case.tensors.emplace(text.substr(0, colon), Tensor::zeros(DType::kF32, shape));
  }
}

}  // namespace

VectorMap VectorMap::read(const std::filesystem::path& file) {
  VectorMap map;
  map.file_ = file;
  std::ifstream in(file);
  if (!in) throw InputError(file.string(), "cannot be read", "a vector map (JSON) is needed");
  try {
    const json root = json::parse(in);
    if (!root.is_object() || root.value("assay_vectors", 0) != 1 || !root.contains("groups")) {
      throw InputError(file.string(), "no vector map", "\"assay_vectors\": 1 and \"groups\" are needed");
    }
    map.groups_ = root.at("groups");
  } catch (const json::exception& error) {
    throw InputError(file.string(), std::string("not JSON: ") + error.what(), "");
  }
  return map;
}

bool VectorMap::knows(const std::string& group) const { return groups_.contains(group); }

std::vector<VectorCall> VectorMap::calls(const VectorCase& vector_case, std::vector<std::string>& unclaimed) const {
  const json& group = groups_.at(vector_case.group);
  std::vector<VectorCall> made;
  std::set<std::string> claimed;
  try {
    for (json rule : group.at("calls")) {
      for (const char* inherited : {"profile", "flags"})
        if (group.contains(inherited) && !rule.contains(inherited)) rule[inherited] = group.at(inherited);
      Reader reader(file_, vector_case);
      repeat(reader, rule, rule.value("repeat", json::array()), 0, [&] {
        bool wanted = !rule.contains("when") || reader.truth(rule.at("when"));
        for (const json& needed : rule.value("needs", json::array())) wanted = wanted && reader.has(needed);
        if (wanted) made.push_back(make(reader, rule, vector_case, claimed));
      });
    }
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: group {}, case {}", file_.string(), vector_case.group, vector_case.name),
                     error.what(), "the form is described in harness/vector_map.h");
  } catch (const InputError& error) {
    const std::string message = error.what();
    if (message.rfind(file_.string(), 0) == 0) throw;
    throw InputError(
        fmt::format("{}: group {}, case {}: {}", file_.string(), vector_case.group, vector_case.name, message));
  }
  const json ignored = group.value("ignored", json::object());
  for (const auto& [name, tensor] : vector_case.tensors) {
    const bool is_output = name.rfind("out.", 0) == 0 || name.rfind("grad.", 0) == 0;
    if (is_output && !claimed.count(name) && !ignored.contains(name)) unclaimed.push_back(name);
  }
  return made;
}

std::vector<VectorCase> read_vector_cases(const std::filesystem::path& file) {
  const TensorFile tensors = TensorFile::open(file);
  const auto text = tensors.metadata().find("cases");
  if (text == tensors.metadata().end()) {
    throw InputError(file.string() + ": metadata field cases", "missing", "a vector file describes its cases there");
  }
  json described;
  try {
    described = json::parse(text->second);
  } catch (const json::exception& error) {
    throw InputError(file.string() + ": metadata field cases", std::string("not JSON: ") + error.what(), "");
  }
  if (!described.is_object()) throw InputError(file.string() + ": metadata field cases", "not an object", "");
  std::map<std::string, VectorCase> cases;
  for (const auto& [name, flags] : described.items()) {
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos || !flags.is_object()) {
      throw InputError(file.string() + ": case " + name, "not \"<group>.<case>\" with an object of flags", "");
    }
    cases[name] = {name, name.substr(0, dot), flags, {}};
  }
  for (const auto& [name, tensor] : tensors.tensors()) {
    const std::size_t dot = name.find('.', name.find('.') + 1);
    const auto owner = cases.find(name.substr(0, dot));
    if (dot == std::string::npos || owner == cases.end()) {
      throw InputError(file.string() + ": tensor " + name, "belongs to no case of the metadata", "");
    }
    owner->second.tensors.emplace(name.substr(dot + 1), tensor);
  }
  for (auto& [name, vector_case] : cases) add_empty_tensors(file, vector_case);
  std::vector<VectorCase> result;
  for (auto& [name, vector_case] : cases) result.push_back(std::move(vector_case));
  return result;
}

}  // namespace assay::harness
