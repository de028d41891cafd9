#include "harness/junit.h"

#include <gtest/gtest.h>

namespace assay::harness {
namespace {

TEST(Junit, text_is_escaped_for_xml) {
  EXPECT_EQ(xml_escaped("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &apos;d&apos;");
  EXPECT_EQ(xml_escaped("line\nbreak\tand\rreturn"), "line&#10;break&#9;and&#13;return");
  EXPECT_EQ(xml_escaped("größe 模型 😀"), "größe 模型 😀");
}

TEST(Junit, what_xml_cannot_hold_is_replaced) {
  EXPECT_EQ(xml_escaped(std::string("\x01\x1b[0m\0", 6)), "\\x01\\x1b[0m\\x00");
  EXPECT_EQ(xml_escaped("\xff|\xc3|\xed\xa0\x80"), "\xEF\xBF\xBD|\xEF\xBF\xBD|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(xml_escaped("\xc0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(xml_escaped("\xef\xbf\xbf"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

Check check(const std::string& stage, Verdict verdict, const std::string& reason) {
  Check made;
  made.stage = stage;
  made.scope = "local";
  made.verdict = verdict;
  made.reason = reason;
  made.elements = 100;
  made.seconds = 0.5;
  return made;
}

TEST(Junit, one_testcase_per_check_with_its_message) {
  Report report;
  report.title = "kda_dsa";
  report.command = "assay verify 'a b.json'";
  report.seconds = 2.0;
  report.checks = {check("a", Verdict::kPass, ""),
                   check("t", Verdict::kPass, "1 row tied"),
                   check("f<1>", Verdict::kFail, ""),
                   check("m", Verdict::kMistrusted, "all zeros"),
                   check("s", Verdict::kSkipped, "not recorded"),
                   check("e", Verdict::kError, "no such \"tensor\"")};
  report.checks[2].over_limit = 3;
  report.checks[2].worst = Element{{1, 2}, 0.5, 0.25, 1e-3};
  EXPECT_EQ(to_junit(report), R"xml(<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="6" failures="2" errors="1" skipped="1" time="2.000">
  <testsuite name="kda_dsa" tests="6" failures="2" errors="1" skipped="1" time="2.000">
    <properties>
      <property name="command" value="assay verify &apos;a b.json&apos;"/>
    </properties>
    <testcase classname="kda_dsa" name="a (local)" time="0.500"/>
    <testcase classname="kda_dsa" name="t (local)" time="0.500">
      <system-out>1 row tied</system-out>
    </testcase>
    <testcase classname="kda_dsa" name="f&lt;1&gt; (local)" time="0.500">
      <failure type="FAIL" message="FAIL; 3 of 100 elements beyond the limit; worst at [1, 2]: observed 0.5 (0x1p-1), expected 0.25 (0x1p-2), limit 1.000e-03"/>
    </testcase>
    <testcase classname="kda_dsa" name="m (local)" time="0.500">
      <failure type="MISTRUSTED" message="MISTRUSTED; all zeros"/>
    </testcase>
    <testcase classname="kda_dsa" name="s (local)" time="0.500">
      <skipped message="SKIPPED; not recorded"/>
    </testcase>
    <testcase classname="kda_dsa" name="e (local)" time="0.500">
      <error type="ERROR" message="ERROR; no such &quot;tensor&quot;"/>
    </testcase>
  </testsuite>
</testsuites>
)xml");
}

}  // namespace
}  // namespace assay::harness
