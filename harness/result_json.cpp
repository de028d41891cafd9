#include "harness/result_json.h"

#include <cmath>

namespace assay::harness {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kResultVersion = 1;

Json to_json(const Element& element) {
  return {{"index", element.index},
          {"observed", json_number(element.observed)},
          {"expected", json_number(element.expected)},
          {"limit", json_number(element.limit)},
          {"ulps", element.ulps ? Json(*element.ulps) : Json(nullptr)}};
}

Json rows_json(const Check& check) {
  return {{"equal", check.rows_equal},
          {"tied", check.rows_tied},
          {"by_margin", check.rows_by_margin},
          {"unexplained", check.rows_unexplained}};
}

Json to_json(const Check& check) {
  return {{"stage", check.stage},
          {"recorded", check.recorded},
          {"scope", check.scope},
          {"verdict", word(check.verdict)},
          {"reason", check.reason},
          {"elements", check.elements},
          {"error", json_number(check.error)},
          {"limit", json_number(check.limit)},
          {"share", json_number(check.share)},
          {"relative_error", json_number(check.relative_error)},
          {"certified", json_number(check.certified)},
          {"over_limit", check.over_limit},
          {"fixed", check.fixed},
          {"spread", json_number(check.spread)},
          {"rows", check.is_set ? rows_json(check) : Json(nullptr)},
          {"worst", check.worst ? to_json(*check.worst) : Json(nullptr)},
          {"seconds", json_number(check.seconds)}};
}

}  // namespace

Json json_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

Json to_json(const Report& report) {
  Json counts;
  for (const Verdict verdict :
       {Verdict::kPass, Verdict::kFail, Verdict::kMistrusted, Verdict::kSkipped, Verdict::kError}) {
    counts[std::string(word(verdict))] = report.count(verdict);
  }
  Json checks = Json::array();
  for (const Check& check : report.checks) checks.push_back(to_json(check));
  return {{"assay_result", kResultVersion},
          {"title", report.title},
          {"command", report.command},
          {"scalar", report.scalar},
          {"bits", report.bits},
          {"exit_status", report.exit_status()},
          {"summary", report.last_line()},
          {"certainty", report.certainty},
          {"counts", std::move(counts)},
          {"seconds", json_number(report.seconds)},
          {"peak_memory_bytes", report.peak_memory_bytes},
          {"checks", std::move(checks)}};
}

std::string to_text(const Json& document) {
  constexpr int kIndent = 2;
  return document.dump(kIndent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace assay::harness
