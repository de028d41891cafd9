// Comparing stages of two passes over the same tokens at other places.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "tests/model/recorder.h"

namespace assay::reference {

constexpr int kPreciseBits = 256;
/// Two evaluations of the same formula at kPreciseBits (1e-77), with room for the length of the model.
constexpr double kSame = 1e-60;

inline void expect_same(const std::vector<Real>& found, const std::vector<Real>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  Real largest(0), off(0);
  for (std::size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, Real(abs(expected[i])));
    off = std::max(off, Real(abs(Real(found[i] - expected[i]))));
  }
  EXPECT_TRUE(off <= largest * Real(kSame))
      << what << " is off by " << off.convert_to<double>() << " of " << largest.convert_to<double>();
}

template <class T>
std::vector<T> rows(const std::vector<T>& data, std::int64_t width, std::int64_t begin, std::int64_t end) {
  return {data.begin() + begin * width, data.begin() + end * width};
}

/// Where the tokens of a pass over fewer tokens lie in a pass over more of them.
struct Place {
  std::int64_t row = 0, first = 0;  ///< row of the batch, first token inside the row
  std::int64_t row_length = 0;      ///< tokens of each row of the larger pass
  std::int64_t tokens = 0;          ///< tokens of the smaller pass, which has one row
  std::int64_t leading = 0;         ///< its own tokens to leave out (padding)
};

/// Every stage of `part` (one row) equals the stage of `whole` on the tokens at `place`. Stages of single rows carry
/// their row's number; ids of tokens count from the row's beginning.
inline void expect_same_tokens(const Recorder<Real>& part, const Recorder<Real>& whole, const Place& place) {
  const auto in_whole = [&](const std::string& stage) {
    return stage.back() == ']' ? stage.substr(0, stage.find('[')) + "[" + std::to_string(place.row) + "]" : stage;
  };
  for (const auto& [stage, value] : part.stages) {
    if (stage == "head.loss") continue;
    const Array<Real>& large = whole.stages.at(in_whole(stage));
    const bool one_row = stage.back() == ']';
    const std::int64_t begin = (one_row ? 0 : place.row * place.row_length) + place.first;
    if (!one_row) {
      const std::int64_t width = value.size() / value.dim(0);
      expect_same(rows(value.data, width, place.leading, place.tokens),
                  rows(large.data, width, begin + place.leading, begin + place.tokens), stage);
      continue;
    }
    // Attention weights [tokens, heads, keys]: the keys of others have none.
    const std::int64_t heads = value.dim(1);
    std::vector<Real> expected, found;
    for (std::int64_t t = place.leading; t < place.tokens; ++t)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t s = 0; s < large.dim(2); ++s) {
          const std::int64_t own = s - place.first;
          expected.push_back(own >= 0 && own < place.tokens ? value.at(t, h, own) : Real(0));
          found.push_back(large.at(begin + t, h, s));
        }
    expect_same(found, expected, stage);
  }
  for (const auto& [stage, decision] : part.decisions) {
    const bool one_row = stage.back() == ']';
    const Index& large = whole.decisions.at(in_whole(stage)).chosen;
    const std::int64_t width = decision.chosen.dim(1);
    const std::int64_t begin = (one_row ? 0 : place.row * place.row_length) + place.first;
    std::vector<std::int64_t> found = rows(large.data, width, begin + place.leading, begin + place.tokens);
    if (one_row)
      for (std::int64_t& id : found)
        if (id >= 0) id -= place.first;
    EXPECT_EQ(found, rows(decision.chosen.data, width, place.leading, place.tokens)) << stage;
  }
}

}  // namespace assay::reference
