// The records beside the checkout: as recorded_case.h, with kda_dsa from there too (the bundled one has no gradients).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/model/recorded_case.h"

namespace assay::harness {

/// $ASSAY_PEER, or shared/peer in or beside the checkout.
inline std::filesystem::path peer_folder() { return case_folder("."); }

inline std::filesystem::path names_file() {
  return std::filesystem::path(ASSAY_SOURCE_DIR) / "cases" / "names" / "transformers.json";
}

#define ASSAY_NEED_PEER(file)                                                             \
  if (!std::filesystem::exists(::assay::harness::peer_folder() / (file)))                 \
  GTEST_SKIP() << "no " << (::assay::harness::peer_folder() / (file)).string() << "; set" \
               << " ASSAY_PEER to the folder that holds it"

/// |found - expected| / |expected|, 2-norms.
inline double relative_deviation(const std::vector<double>& found, const std::vector<double>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double off = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    off += (found[i] - expected[i]) * (found[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm > 0.0 ? std::sqrt(off / norm) : std::sqrt(off);
}

}  // namespace assay::harness
