#include "harness/ties.h"

#include <algorithm>
#include <cmath>

namespace assay::harness {
namespace {

using reference::Decision;
using reference::Index;
using reference::ModelInputs;

constexpr std::int64_t kMostCombinations = 4000000;  // of the micro-batches' outcomes

using Weights = std::map<std::string, reference::Array<double>>;

/// The candidate that a chosen id stands for: its pool, or itself; -1 for a token of no pool.
std::int64_t candidate_of(const Decision<double>& decision, std::int64_t id) {
  if (decision.kpool == 0) return id;
  for (std::int64_t p = 0; p < decision.first_token.size(); ++p)
    if (id >= decision.first_token[p] && id < decision.first_token[p] + decision.kpool) return p;
  return -1;
}

/// Every row of ids that an exact tie allows; the row itself first.
std::vector<std::vector<std::int64_t>> legal_rows(const Decision<double>& decision, std::int64_t row) {
  const std::vector<std::int64_t>& tied = decision.tied[static_cast<std::size_t>(row)];
  const std::int64_t width = decision.chosen.dim(1);
  const std::vector<std::int64_t> own(decision.chosen.row(row, width), decision.chosen.row(row, width) + width);
  std::vector<std::size_t> places;  // slots that the tie decides
  std::vector<bool> in(tied.size(), false);
  for (std::size_t slot = 0; slot < own.size(); ++slot) {
    if (own[slot] < 0) continue;
    const auto found = std::find(tied.begin(), tied.end(), candidate_of(decision, own[slot]));
    if (found == tied.end()) continue;
    places.push_back(slot);
    in[static_cast<std::size_t>(found - tied.begin())] = true;
  }
  const std::vector<bool> chosen = in;
  std::vector<std::vector<std::int64_t>> rows = {own};
  std::sort(in.begin(), in.end(), std::greater<>());
  do {
    if (in == chosen) continue;
    std::vector<std::int64_t> ids;
    for (std::size_t c = 0; c < tied.size(); ++c) {
      if (!in[c]) continue;
      if (decision.kpool == 0) ids.push_back(tied[c]);
      for (std::int64_t t = 0; t < decision.kpool; ++t) ids.push_back(decision.first_token[tied[c]] + t);
    }
    ASSAY_CHECK(ids.size() == places.size());
    rows.push_back(own);
    for (std::size_t i = 0; i < ids.size(); ++i) rows.back()[places[i]] = ids[i];
  } while (std::prev_permutation(in.begin(), in.end()));
  return rows;
}

double loss_with(const Checkpoint& checkpoint, const ModelInputs& inputs, const Weights& weights,
                 TieObserver& observer) {
  reference::Tape<double> tape(false);
  for (const auto& [name, value] : weights) tape.preset(name, value);
  return reference::forward<double>(checkpoint, inputs, reference::Conventions{}, reference::LossOptions{}, observer,
                                    tape)
      .loss[0];
}

/// Everything a micro-batch may have done.
struct Candidates {
  std::vector<Outcome> outcomes;
  std::vector<double> losses;
  std::int64_t tied = 0;
};

Candidates candidates(const Checkpoint& checkpoint, const ModelInputs& inputs, const Weights& weights) {
  TieObserver first;
  Candidates result{
      {{}}, {loss_with(checkpoint, inputs, weights, first)}, static_cast<std::int64_t>(first.legal.size())};
  for (const auto& [place, rows] : first.legal) {
    if (result.outcomes.size() * rows.size() > kMostOutcomes) continue;
    const std::size_t before = result.outcomes.size();
    for (std::size_t r = 1; r < rows.size(); ++r)
      for (std::size_t i = 0; i < before; ++i) {
        result.outcomes.push_back(result.outcomes[i]);
        result.outcomes.back()[place] = rows[r];
      }
  }
  for (std::size_t i = 1; i < result.outcomes.size(); ++i) {
    TieObserver observer(result.outcomes[i]);
    result.losses.push_back(loss_with(checkpoint, inputs, weights, observer));
  }
  return result;
}

/// Which outcome of each micro-batch brings the mean of the losses nearest to `wanted`.
std::vector<std::size_t> nearest(const std::vector<Candidates>& all, double wanted) {
  std::vector<std::size_t> at(all.size(), 0), best = at;
  double off = INFINITY;
  for (std::int64_t tried = 0; tried < kMostCombinations; ++tried) {
    double sum = 0.0;
    for (std::size_t m = 0; m < all.size(); ++m) sum += all[m].losses[at[m]];
    const double distance = std::abs(sum / static_cast<double>(all.size()) - wanted);
    if (distance < off) {
      off = distance;
      best = at;
    }
    std::size_t m = 0;
    while (m < all.size() && ++at[m] == all[m].losses.size()) at[m++] = 0;
    if (m == all.size()) break;
  }
  return best;
}

}  // namespace

void TieObserver::decision(const std::string& stage, Decision<double>& decision) {
  const std::int64_t width = decision.chosen.dim(1);
  for (std::int64_t row = 0; row < decision.chosen.dim(0); ++row) {
    if (decision.tied[static_cast<std::size_t>(row)].empty()) continue;
    const std::vector<std::vector<std::int64_t>> rows = legal_rows(decision, row);
    legal[{stage, row}] = rows;
    const auto found = outcome_.find({stage, row});
    if (found == outcome_.end() || std::find(rows.begin(), rows.end(), found->second) == rows.end()) continue;
    std::copy(found->second.begin(), found->second.end(), decision.chosen.row(row, width));
  }
  choices[stage] = decision.chosen;
}

Resolution resolve_ties(const Checkpoint& checkpoint, const std::vector<ModelInputs>& micro_batches,
                        const Weights& weights, double recorded_loss) {
  std::vector<Candidates> all;
  for (const ModelInputs& inputs : micro_batches) all.push_back(candidates(checkpoint, inputs, weights));
  const std::vector<std::size_t> best = nearest(all, recorded_loss);
  Resolution result;
  for (std::size_t m = 0; m < all.size(); ++m) {
    const Outcome& outcome = all[m].outcomes[best[m]];
    TieObserver observer(outcome);
    loss_with(checkpoint, micro_batches[m], weights, observer);
    result.choices.push_back(std::move(observer.choices));
    result.tied += all[m].tied;
    result.followed += static_cast<std::int64_t>(outcome.size());
  }
  return result;
}

}  // namespace assay::harness
