#include "harness/result.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>

#include "harness/result_json.h"

namespace assay::harness {
namespace {

Check check(const std::string& stage, Verdict verdict, double share = 0.25) {
  Check made;
  made.stage = stage;
  made.verdict = verdict;
  made.elements = 100;
  made.limit = 4e-6;
  made.share = share;
  made.error = share * made.limit;
  return made;
}

Report report(std::vector<Check> checks) {
  Report made;
  made.title = "kda_dsa";
  made.command = "assay verify kda_dsa.json";
  made.scalar = "ball";
  made.bits = 128;
  made.certainty = "reference certified to 1e-30";
  made.checks = std::move(checks);
  return made;
}

TEST(Result, verdict_words_are_the_closed_set_of_the_design) {
  EXPECT_EQ(word(Verdict::kPass), "PASS");
  EXPECT_EQ(word(Verdict::kFail), "FAIL");
  EXPECT_EQ(word(Verdict::kMistrusted), "MISTRUSTED");
  EXPECT_EQ(word(Verdict::kSkipped), "SKIPPED");
  EXPECT_EQ(word(Verdict::kError), "ERROR");
}

TEST(Result, exit_status_is_0_only_if_something_passed_and_nothing_is_wrong) {
  EXPECT_EQ(report({check("a", Verdict::kPass)}).exit_status(), 0);
  EXPECT_EQ(report({check("a", Verdict::kPass), check("b", Verdict::kSkipped)}).exit_status(), 0);
  for (const Verdict bad : {Verdict::kFail, Verdict::kMistrusted, Verdict::kError}) {
    EXPECT_EQ(report({check("a", Verdict::kPass), check("b", bad)}).exit_status(), 1);
  }
  EXPECT_EQ(report({}).exit_status(), 1);
  EXPECT_EQ(report({check("a", Verdict::kSkipped)}).exit_status(), 1);
}

TEST(Result, last_line_of_a_pass_says_how_much_was_judged_and_used) {
  EXPECT_EQ(
      report({check("a", Verdict::kPass, 0.25), check("b", Verdict::kPass, 0.5), check("c", Verdict::kSkipped, 9)})
          .last_line(),
      "PASS: 2 checks of kda_dsa, 200 elements, 1 skipped, at most 50% of a limit used (b), reference certified to "
      "1e-30");
}

TEST(Result, last_line_of_a_failure_counts_and_names_the_first) {
  EXPECT_EQ(report({check("a", Verdict::kPass), check("m", Verdict::kMistrusted), check("f", Verdict::kFail),
                    check("g", Verdict::kFail)})
                .last_line(),
            "FAIL: 2 FAIL, 1 MISTRUSTED among 4 checks of kda_dsa, first: f");
  EXPECT_EQ(report({check("e", Verdict::kError)}).last_line(), "ERROR: 1 ERROR among 1 check of kda_dsa, first: e");
}

TEST(Result, a_run_that_judged_nothing_is_mistrusted) {
  EXPECT_EQ(report({}).last_line(), "MISTRUSTED: nothing was judged in kda_dsa (0 checks, all skipped)");
}

nlohmann::json schema() {
  std::ifstream file(ASSAY_SOURCE_DIR "/harness/result.schema.json");
  return nlohmann::json::parse(file);
}

/// True if the value is what the (sub)schema allows, for the words that result.schema.json uses.
bool valid(const nlohmann::json& value, const nlohmann::json& rule, const nlohmann::json& root, std::string& why) {
  if (rule.contains("$ref")) {
    const std::string target = rule.at("$ref").get<std::string>().substr(std::string("#/$defs/").size());
    if (!valid(value, root.at("$defs").at(target), root, why)) return false;
  }
  if (rule.contains("const") && value != rule.at("const")) return why = value.dump(), false;
  if (rule.contains("enum")) {
    const auto& allowed = rule.at("enum");
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) return why = value.dump(), false;
  }
  if (rule.contains("anyOf")) {
    const auto fits = [&](const nlohmann::json& choice) { return valid(value, choice, root, why); };
    if (!std::any_of(rule.at("anyOf").begin(), rule.at("anyOf").end(), fits)) return false;
  }
  const std::string type = rule.value("type", "");
  const bool right_type = type.empty() || (type == "object" && value.is_object()) ||
                          (type == "array" && value.is_array()) || (type == "string" && value.is_string()) ||
                          (type == "integer" && value.is_number_integer()) || (type == "number" && value.is_number()) ||
                          (type == "null" && value.is_null());
  if (!right_type) return why = value.dump() + " is no " + type, false;
  if (rule.contains("minimum") && value < rule.at("minimum")) return why = value.dump(), false;
  if (rule.contains("items")) {
    for (const auto& entry : value) {
      if (!valid(entry, rule.at("items"), root, why)) return false;
    }
  }
  if (type != "object") return true;
  for (const auto& name : rule.at("required")) {
    if (!value.contains(name.get<std::string>())) return why = "no " + name.dump(), false;
  }
  for (const auto& [name, entry] : value.items()) {
    if (!rule.at("properties").contains(name)) return why = "unknown " + name, false;
    if (!valid(entry, rule.at("properties").at(name), root, why)) return why = name + ": " + why, false;
  }
  return true;
}

Report odd_report() {
  Report made = report({check("a", Verdict::kPass), check("odd \"name\"\n", Verdict::kFail, 1.5),
                        check("set", Verdict::kPass), check("s", Verdict::kSkipped)});
  made.checks[1].worst = Element{{1, 2}, 0.1, 0.2, 1e-9};
  made.checks[1].error = std::numeric_limits<double>::infinity();
  made.checks[1].relative_error = std::numeric_limits<double>::quiet_NaN();
  made.checks[2].is_set = true;
  made.checks[2].rows_equal = 3;
  return made;
}

TEST(ResultJson, a_report_fits_the_schema) {
  const nlohmann::json document = nlohmann::json::parse(to_text(to_json(odd_report())));
  const nlohmann::json rules = schema();
  std::string why;
  EXPECT_TRUE(valid(document, rules, rules, why)) << why;
}

TEST(ResultJson, the_schema_is_closed) {
  const nlohmann::json rules = schema();
  std::string why;
  nlohmann::json document = to_json(odd_report());
  document["checks"][0]["verdict"] = "OK";
  EXPECT_FALSE(valid(document, rules, rules, why));
  document = to_json(odd_report());
  document["checks"][0]["extra"] = 1;
  EXPECT_FALSE(valid(document, rules, rules, why));
  document = to_json(odd_report());
  document.erase("command");
  EXPECT_FALSE(valid(document, rules, rules, why));
  std::function<void(const nlohmann::json&)> closed = [&](const nlohmann::json& rule) {
    if (rule.is_object() && rule.contains("properties")) {
      EXPECT_EQ(rule.value("additionalProperties", true), false);
      EXPECT_EQ(rule.at("required").size(), rule.at("properties").size());
    }
    if (rule.is_structured()) {
      for (const auto& entry : rule) closed(entry);
    }
  };
  closed(rules);
}

TEST(ResultJson, numbers_read_back_to_the_same_bits) {
  for (const double value : {0.1, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, -0.0}) {
    const double back = nlohmann::json::parse(json_number(value).dump()).get<double>();
    EXPECT_EQ(back, value);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
  }
  EXPECT_EQ(json_number(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(json_number(std::nan("")), "nan");
}

TEST(ResultJson, bytes_that_are_not_utf8_do_not_break_the_file) {
  Report made = report({check("a", Verdict::kPass)});
  made.command = "assay verify '\xff.json'";
  EXPECT_EQ(nlohmann::json::parse(to_text(to_json(made))).at("command"), "assay verify '\xEF\xBF\xBD.json'");
}

}  // namespace
}  // namespace assay::harness
