#include "harness/evaluation.h"

#include <algorithm>
#include <string_view>

#include "cases/error.h"
#include "harness/decimal.h"
#include "reference/evaluate.h"

namespace assay::harness {
namespace {

using reference::Ball;
using reference::Real;
using Json = nlohmann::ordered_json;

constexpr int kDoubleBits = 53;

bool is_margin(std::string_view output) {
  constexpr std::string_view kMargin = "margin";
  return output.size() >= kMargin.size() && output.substr(output.size() - kMargin.size()) == kMargin;
}

bool is_zero(const Ball& x) { return arb_is_zero(x.data()) != 0; }

/// Nests a flat list by shape.
template <class Entry>
Json nested(const Shape& shape, std::size_t depth, std::int64_t& next, const Entry& entry) {
  if (depth == shape.size()) return entry(next++);
  Json list = Json::array();
  for (std::int64_t i = 0; i < shape[depth]; ++i) list.push_back(nested(shape, depth + 1, next, entry));
  return list;
}

template <class Entry>
Json output_json(const Shape& shape, const Entry& entry) {
  std::int64_t next = 0;
  Json values = nested(shape, 0, next, entry);
  return {{"shape", shape}, {"values", std::move(values)}};
}

template <class T>
Ball as_ball(const T& x) {
  return reference::to_ball(x);
}

/// Outputs in decimals; `certain` becomes false if a value does not have as many digits as asked.
template <class T>
Json outputs_json(const OpCall& call, const reference::Results<T>& results, int digits, bool& certain) {
  Json outputs = Json::object();
  for (const OperandSpec& spec : call.spec->outputs) {
    const auto found = results.find(spec.name);
    if (found == results.end()) continue;
    if (const auto* index = std::get_if<reference::Index>(&found->second)) {
      outputs[spec.name] = output_json(index->shape, [&](std::int64_t i) { return Json((*index)[i]); });
      continue;
    }
    const auto& array = std::get<reference::Array<T>>(found->second);
    outputs[spec.name] = output_json(array.shape, [&](std::int64_t i) {
      const Ball value = as_ball(array[i]);
      const auto decimal = to_decimal(value, digits);
      if (!decimal) certain = false;
      return Json(decimal ? *decimal : to_string(value, digits));
    });
  }
  return outputs;
}

template <class T>
Json ties_json(const reference::Results<T>& results) {
  Json ties = Json::object();
  for (const auto& [name, value] : results) {
    const auto* array = std::get_if<reference::Array<T>>(&value);
    if (!is_margin(name) || array == nullptr) continue;
    Json rows = Json::array();
    for (std::int64_t i = 0; i < array->size(); ++i) {
      if (is_zero(as_ball((*array)[i]))) rows.push_back(i);
    }
    ties[name] = std::move(rows);
  }
  return ties;
}

struct Attempt {
  Json outputs;
  Json ties;
  bool certain = true;
};

template <class T>
Attempt attempt(const OpCall& call, const reference::Results<T>& results, int digits) {
  Attempt made;
  made.outputs = outputs_json(call, results, digits, made.certain);
  made.ties = ties_json(results);
  return made;
}

Attempt evaluate_at(const OpCall& call, const Precision& precision, int bits) {
  reference::Context wanted = reference::context();
  wanted.bits = bits;
  wanted.cap_bits = std::max(wanted.cap_bits, bits);
  const reference::ContextScope scope(wanted);
  if (precision.scalar == "double") return attempt(call, reference::evaluate<double>(call), precision.digits);
  if (precision.scalar == "real") return attempt(call, reference::evaluate<Real>(call), precision.digits);
  ASSAY_CHECK(precision.scalar == "ball");
  return attempt(call, reference::evaluate_certain(call), precision.digits);
}

}  // namespace

Json evaluation_json(const OpCall& call, const Precision& precision) {
  int bits = precision.scalar == "double" ? kDoubleBits : precision.bits;
  Attempt made = evaluate_at(call, precision, bits);
  while (!made.certain && precision.scalar == "ball" && bits < precision.most_bits) {
    bits = std::min(2 * bits, precision.most_bits);
    made = evaluate_at(call, precision, bits);
  }
  return {{"op", call.spec->name},
          {"scalar", precision.scalar},
          {"bits", bits},
          {"outputs", std::move(made.outputs)},
          {"ties", std::move(made.ties)}};
}

}  // namespace assay::harness
