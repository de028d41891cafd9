// The reference against the float64 records of an independent implementation, stage by stage and end to end.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/model/recorded_case.h"

namespace assay::harness {
namespace {

/// Norm of the difference over norm of the truth that two float64 implementations may be apart.
constexpr double kLocal = 1e-13, kEndToEnd = 1e-11;

std::vector<Check> verified(const RecordedCase& recorded, VerifySettings settings = {}) {
  return verify_trace(recorded.checkpoint, recorded.trace, settings);
}

class RecordedCheckpoint : public testing::TestWithParam<std::string> {
 protected:
  /// Judged once for all tests of a checkpoint.
  static const std::vector<Check>& checks() {
    static std::map<std::string, std::vector<Check>> all;
    const auto found = all.find(GetParam());
    if (found != all.end()) return found->second;
    return all[GetParam()] = verified(open_case(case_folder(GetParam())));
  }
};

TEST_P(RecordedCheckpoint, every_activation_is_matched_locally_and_end_to_end) {
  ASSAY_NEED_CASE(GetParam());
  std::int64_t compared = 0;
  for (const Check& check : checks()) {
    if (check.is_set || check.verdict == Verdict::kSkipped) continue;
    EXPECT_LE(check.relative_error, check.scope == "local" ? kLocal : kEndToEnd) << line_of(check);
    EXPECT_GT(check.elements, 0) << line_of(check);
    ++compared;
  }
  EXPECT_GT(compared, 30);
}

TEST_P(RecordedCheckpoint, every_choice_is_equal_as_a_set_but_for_two_exact_ties) {
  ASSAY_NEED_CASE(GetParam());
  std::map<std::string, std::int64_t> tied;
  std::int64_t judged = 0;
  for (const Check& check : checks()) {
    if (!check.is_set) continue;
    ++judged;
    EXPECT_GT(check.rows_equal, 0) << line_of(check);
    EXPECT_EQ(check.rows_by_margin, 0) << line_of(check);
    EXPECT_EQ(check.rows_unexplained, 0) << line_of(check);
    if (check.rows_tied == 0) continue;
    EXPECT_EQ(check.stage.rfind("layers.0.dsa.select[", 0), 0U) << line_of(check);
    tied[check.scope + " " + check.recorded.substr(0, check.recorded.find('['))] += check.rows_tied;
  }
  EXPECT_GT(judged, 0);
  // shared/peer/README.md: 2 of the 50 rows that really select have an exact tie at the threshold. The same choice is
  // recorded under several names.
  for (const auto& [record, rows] : tied) EXPECT_EQ(rows, 2) << record;
  EXPECT_EQ(tied.empty(), GetParam() != "shared_index_groups");
}

TEST_P(RecordedCheckpoint, every_record_is_judged_in_both_scopes_and_passes) {
  ASSAY_NEED_CASE(GetParam());
  const RecordedCase recorded = open_case(case_folder(GetParam()));
  EXPECT_TRUE(recorded.trace.unmapped.empty()) << fmt::format("{}", fmt::join(recorded.trace.unmapped, ", "));
  std::map<std::string, std::int64_t> found;
  for (const Check& check : checks()) {
    EXPECT_EQ(check.verdict, Verdict::kPass) << line_of(check);
    ++found[check.scope + " " + check.recorded];
  }
  for (const auto& [stage, records] : recorded.trace.stages)
    for (const Recorded& record : records)
      for (const char* scope : {"local ", "end to end "})
        EXPECT_EQ(found[scope + record.name], 1) << scope << stage << " from " << record.name;
}

INSTANTIATE_TEST_SUITE_P(Peer, RecordedCheckpoint,
                         testing::Values("kda_dsa", "shared_index_groups", "vision", "long_chunks"),
                         [](const auto& checkpoint) { return checkpoint.param; });

TEST(RecordedBalls, every_judged_stage_is_certified_to_1e_minus_20) {
  ASSAY_NEED_CASE("kda_dsa");
  VerifySettings settings;
  settings.scalar = ScalarKind::kBall;
  std::int64_t certified = 0;
  for (const Check& check : verified(open_case(case_folder("kda_dsa")), settings)) {
    EXPECT_EQ(check.verdict, Verdict::kPass) << line_of(check);
    if (check.is_set) continue;
    EXPECT_LE(check.certified, 1e-20) << line_of(check);
    if (check.certified > 0.0) ++certified;
  }
  EXPECT_GT(certified, 100) << "balls have radii";
}

}  // namespace
}  // namespace assay::harness
