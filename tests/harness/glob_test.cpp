#include "harness/glob.h"

#include <gtest/gtest.h>

#include <string>

namespace assay::harness {
namespace {

TEST(Glob, star_is_any_run_and_none) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("*", "layers.6.dsa.out"));
  EXPECT_TRUE(glob_match("layers.6.*", "layers.6.dsa.out"));
  EXPECT_TRUE(glob_match("layers.6.dsa.out*", "layers.6.dsa.out"));
  EXPECT_FALSE(glob_match("layers.6.*", "layers.60.dsa.out"));
}

TEST(Glob, the_whole_name_must_fit) {
  EXPECT_FALSE(glob_match("dsa", "layers.6.dsa.out"));
  EXPECT_FALSE(glob_match("layers", "layers.6"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_TRUE(glob_match("", ""));
}

TEST(Glob, question_mark_is_exactly_one) {
  EXPECT_TRUE(glob_match("layers.?.out", "layers.6.out"));
  EXPECT_FALSE(glob_match("layers.?.out", "layers.16.out"));
  EXPECT_FALSE(glob_match("layers.?.out", "layers..out"));
}

TEST(Glob, a_star_gives_back_what_the_rest_needs) {
  EXPECT_TRUE(glob_match("*.mlp.*.out", "layers.6.mlp.gate.mlp.0.out"));
  EXPECT_TRUE(glob_match("*ab*ab", "abababab"));
  EXPECT_FALSE(glob_match("*ab*ac", "abababab"));
}

TEST(Glob, other_signs_are_themselves) {
  EXPECT_TRUE(glob_match("a[0]+(b)\\", "a[0]+(b)\\"));
  EXPECT_FALSE(glob_match("a[0]", "a0"));
}

TEST(Glob, many_stars_take_no_exponential_time) {
  std::string pattern;
  for (int i = 0; i < 40; ++i) pattern += "*a";
  EXPECT_FALSE(glob_match(pattern + "b", std::string(20000, 'a')));
}

}  // namespace
}  // namespace assay::harness
