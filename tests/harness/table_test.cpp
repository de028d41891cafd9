#include "harness/table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <sstream>

namespace assay::harness {
namespace {

Report sample() {
  Check values;
  values.stage = "layers.6.dsa.out";
  values.scope = "local";
  values.elements = 4096;
  values.error = 1.25e-7;
  values.limit = 1e-6;
  values.share = 0.125;
  values.relative_error = 3e-8;
  values.verdict = Verdict::kPass;
  Check sets = values;
  sets.stage = "größe";
  sets.is_set = true;
  sets.rows_equal = 40;
  sets.rows_tied = 3;
  sets.rows_by_margin = 2;
  sets.reason = "3 rows tied";
  Check failed = values;
  failed.stage = "x";
  failed.verdict = Verdict::kFail;
  failed.share = 2.5;
  failed.reason = "beyond the limit";
  Check skipped;
  skipped.stage = "y";
  skipped.verdict = Verdict::kSkipped;
  skipped.reason = "not recorded";
  Report report;
  report.checks = {values, sets, failed, skipped};
  return report;
}

TEST(Table, columns_are_aligned) {
  EXPECT_EQ(
      to_table(sample(), false),
      "stage                     elements     error     limit     of limit       relative  verdict\n"
      "layers.6.dsa.out (local)      4096  1.25e-07  1.00e-06        12.5%       3.00e-08  PASS\n"
      "größe (local)                 4096  40 equal    3 tied  2 explained  0 unexplained  PASS     3 rows tied\n"
      "x (local)                     4096  1.25e-07  1.00e-06       250.0%       3.00e-08  FAIL     beyond the "
      "limit\n"
      "y                                0         -         -            -              -  SKIPPED  not recorded\n");
}

TEST(Table, colours_surround_the_verdict_and_change_nothing_else) {
  std::string text = to_table(sample(), true);
  EXPECT_NE(text.find("\033[32mPASS"), std::string::npos);
  EXPECT_NE(text.find("\033[31mFAIL"), std::string::npos);
  for (std::size_t start = 0; (start = text.find('\033')) != std::string::npos;) {
    text.erase(start, text.find('m', start) - start + 1);
  }
  std::istringstream coloured(text), plain(to_table(sample(), false));
  for (std::string a, b; std::getline(plain, b);) {
    ASSERT_TRUE(std::getline(coloured, a));
    EXPECT_EQ(a.substr(0, a.find_last_not_of(' ') + 1), b);
  }
}

TEST(Table, no_colours_without_a_terminal) {
  const int file = ::open("/dev/null", O_WRONLY);
  EXPECT_FALSE(wants_colour(file));
  ::close(file);
}

TEST(Table, a_failure_is_explained_with_its_worst_element_in_hexadecimal) {
  Check check = sample().checks[2];
  check.over_limit = 12;
  check.worst = Element{{0, 7}, 0.1, 0.2, 1e-6};
  EXPECT_EQ(explain(check),
            "FAIL; beyond the limit; 12 of 4096 elements beyond the limit; worst at [0, 7]: observed 0.1 "
            "(0x1.999999999999ap-4), expected 0.2 (0x1.999999999999ap-3), limit 1.000e-06");
  check.is_set = true;
  check.rows_unexplained = 2;
  check.worst.reset();
  check.over_limit = 0;
  EXPECT_EQ(explain(check), "FAIL; beyond the limit; 2 rows unexplained");
}

}  // namespace
}  // namespace assay::harness
