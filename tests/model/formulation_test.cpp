// One text, several readings: the scalars agree, and nothing depends on the number of threads.
#include <gtest/gtest.h>

#include "tests/model/recorded_case.h"
#include "tests/model/recorder.h"

namespace assay::reference {
namespace {

using harness::case_folder;
using harness::Jobs;
using harness::open_case;
using harness::RecordedCase;

template <class T>
Recorder<T> recorded_run(const RecordedCase& c, int bits) {
  return record<T>(c.checkpoint, c.trace.inputs, c.trace.conventions, bits);
}

TEST(Formulations, every_ball_contains_the_value_at_256_bits) {
  ASSAY_NEED_CASE("kda_dsa");
  const RecordedCase c = open_case(case_folder("kda_dsa"));
  const Recorder<Ball> balls = recorded_run<Ball>(c, 128);
  const Recorder<Real> reals = recorded_run<Real>(c, 256);
  EXPECT_EQ(balls.order, reals.order);
  std::int64_t with_radius = 0;
  for (const auto& [stage, ball] : balls.stages) {
    const Array<Real>& real = reals.stages.at(stage);
    ASSERT_EQ(ball.shape, real.shape) << stage;
    std::int64_t outside = 0;
    for (std::int64_t i = 0; i < ball.size(); ++i) {
      outside += arb_contains(ball[i].data(), to_ball(real[i]).data()) == 0;
      with_radius += radius(ball[i]) > 0.0;
    }
    EXPECT_EQ(outside, 0) << stage << " has values outside their balls";
  }
  EXPECT_GT(with_radius, 10000);
  for (const auto& [stage, decision] : balls.decisions)
    EXPECT_EQ(decision.chosen.data, reals.decisions.at(stage).chosen.data) << stage;
}

TEST(Formulations, double_agrees_with_256_bits) {
  ASSAY_NEED_CASE("kda_dsa");
  const RecordedCase c = open_case(case_folder("kda_dsa"));
  const Recorder<double> fast = recorded_run<double>(c, 128);
  const Recorder<Real> reals = recorded_run<Real>(c, 256);
  for (const auto& [stage, value] : fast.stages) {
    double difference = 0.0, norm = 0.0;
    for (std::int64_t i = 0; i < value.size(); ++i) {
      const double truth = midpoint(reals.stages.at(stage)[i]);
      difference += (value[i] - truth) * (value[i] - truth);
      norm += truth * truth;
    }
    EXPECT_LE(std::sqrt(difference), 1e-11 * std::sqrt(norm)) << stage;
  }
}

TEST(Formulations, doubles_do_not_depend_on_the_number_of_jobs) {
  ASSAY_NEED_CASE("kda_dsa");
  const RecordedCase c = open_case(case_folder("kda_dsa"));
  const auto run = [&](int jobs) {
    const Jobs scope(jobs);
    return recorded_run<double>(c, 128);
  };
  const Recorder<double> alone = run(1);
  for (const int jobs : {2, 5}) {
    const Recorder<double> several = run(jobs);
    EXPECT_EQ(several.order, alone.order);
    for (const auto& [stage, value] : alone.stages) EXPECT_EQ(several.stages.at(stage).data, value.data) << stage;
    for (const auto& [stage, decision] : alone.decisions)
      EXPECT_EQ(several.decisions.at(stage).chosen.data, decision.chosen.data) << stage;
  }
}

TEST(Formulations, midpoints_and_radii_do_not_depend_on_the_number_of_jobs) {
  ASSAY_NEED_CASE("kda_dsa");
  const RecordedCase c = open_case(case_folder("kda_dsa"));
  const auto run = [&](int jobs) {
    const Jobs scope(jobs);
    return recorded_run<Ball>(c, 128);
  };
  const Recorder<Ball> alone = run(1);
  for (const int jobs : {2, 5}) {
    const Recorder<Ball> several = run(jobs);
    for (const auto& [stage, value] : alone.stages) {
      const Array<Ball>& other = several.stages.at(stage);
      std::int64_t different = 0;
      for (std::int64_t i = 0; i < value.size(); ++i) different += arb_equal(value[i].data(), other[i].data()) == 0;
      EXPECT_EQ(different, 0) << stage << " with " << jobs << " jobs";
    }
  }
}

TEST(Formulations, random_roundings_do_not_depend_on_the_number_of_jobs) {
  ASSAY_NEED_CASE("kda_dsa");
  const RecordedCase c = open_case(case_folder("kda_dsa"));
  const auto logits = [&](int jobs) {
    const Jobs scope(jobs);
    std::vector<double> values;
    const Recorder<Sampled> run = recorded_run<Sampled>(c, 128);
    for (const Sampled& v : run.stages.at("head.logits").data) values.push_back(v.v);
    return values;
  };
  const std::vector<double> alone = logits(1);
  EXPECT_EQ(logits(2), alone);
  EXPECT_EQ(logits(5), alone);
}

}  // namespace
}  // namespace assay::reference
