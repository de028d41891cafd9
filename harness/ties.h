// Exact ties in a record that does not say how it resolved them.
//
// Where scores are exactly equal at the threshold, several choices are right, and the loss depends on which one was
// made. A training record holds losses, not choices: of all legal outcomes the one whose loss is nearest to the
// recorded loss is followed. Nothing that is no exact tie is ever changed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reference/model/model.h"

namespace assay::harness {

/// A row of a decision: stage and row.
using Place = std::pair<std::string, std::int64_t>;
/// Another choice for tied rows.
using Outcome = std::map<Place, std::vector<std::int64_t>>;

inline constexpr std::size_t kMostOutcomes = 2000;  ///< tried per micro-batch; further tied rows stay as they are

/// Takes other outcomes where rows are tied, and keeps what was chosen everywhere and which rows were tied.
class TieObserver : public reference::Observer<double> {
 public:
  explicit TieObserver(const Outcome& outcome = {}) : outcome_(outcome) {}
  void decision(const std::string& stage, reference::Decision<double>& decision) override;

  std::map<std::string, reference::Index> choices;
  std::map<Place, std::vector<std::vector<std::int64_t>>> legal;  ///< of the tied rows, the reference's own first

 private:
  Outcome outcome_;
};

/// Takes every choice from a list, in any scalar.
template <class T>
class ForcedObserver : public reference::Observer<T> {
 public:
  explicit ForcedObserver(const std::map<std::string, reference::Index>& choices) : choices_(choices) {}
  void decision(const std::string& stage, reference::Decision<T>& decision) override {
    decision.chosen = choices_.at(stage);
  }

 private:
  const std::map<std::string, reference::Index>& choices_;
};

struct Resolution {
  std::vector<std::map<std::string, reference::Index>> choices;  ///< of each micro-batch, by stage
  std::int64_t tied = 0;                                         ///< rows that are exactly tied
  std::int64_t followed = 0;  ///< of them those that leave the reference's own choice
};

/// The choices of a step on weights `weights` (where they differ from the checkpoint's) whose loss, the mean over the
/// micro-batches, is nearest to `recorded_loss`.
Resolution resolve_ties(const Checkpoint& checkpoint, const std::vector<reference::ModelInputs>& micro_batches,
                        const std::map<std::string, reference::Array<double>>& weights, double recorded_loss);

}  // namespace assay::harness
