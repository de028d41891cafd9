// How the reference reads an op call: operands as arrays of a scalar, attributes by type.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "cases/ops/op.h"
#include "reference/array.h"

namespace assay::reference {

template <class T>
using Value = std::variant<Array<T>, Index>;

/// Outputs of an op by operand name.
template <class T>
using Results = std::map<std::string, Value<T>>;

/// A validated OpCall (see make_call) seen by an op's formula.
template <class T>
class Call {
 public:
  explicit Call(const OpCall& call) : call_(call) {}
  /// Real operands in `replaced` are taken from there: values that no tensor can hold.
  Call(const OpCall& call, const std::map<std::string, Array<T>>& replaced) : call_(call), replaced_(&replaced) {}

  bool has(const std::string& operand) const { return call_.inputs.count(operand) != 0; }
  Array<T> in(const std::string& operand) const {
    if (replaced_ != nullptr) {
      const auto found = replaced_->find(operand);
      if (found != replaced_->end()) return found->second;
    }
    return load<T>(call_.inputs.at(operand));
  }
  Index index(const std::string& operand) const { return load_index(call_.inputs.at(operand)); }
  const Tensor& tensor(const std::string& operand) const { return call_.inputs.at(operand); }

  double real(const std::string& attribute) const { return call_.attributes.at(attribute).template get<double>(); }
  std::int64_t integer(const std::string& attribute) const {
    return call_.attributes.at(attribute).template get<std::int64_t>();
  }
  bool flag(const std::string& attribute) const { return call_.attributes.at(attribute).template get<bool>(); }
  std::string text(const std::string& attribute) const {
    return call_.attributes.at(attribute).template get<std::string>();
  }
  std::vector<std::int64_t> integers(const std::string& attribute) const {
    return call_.attributes.at(attribute).template get<std::vector<std::int64_t>>();
  }
  /// nullopt for an attribute that is absent or null.
  std::optional<double> optional_real(const std::string& attribute) const {
    const auto found = call_.attributes.find(attribute);
    if (found == call_.attributes.end() || found->is_null()) return std::nullopt;
    return found->template get<double>();
  }

 private:
  const OpCall& call_;
  const std::map<std::string, Array<T>>* replaced_ = nullptr;
};

/// Formulas of ops by name.
template <class T>
using OpTable = std::map<std::string, std::function<Results<T>(const Call<T>&)>>;

}  // namespace assay::reference
