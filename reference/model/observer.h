// The stages of a forward pass, handed to whoever watches. A stage's name is its path: "layers.<physical
// index>.<site>.<op>" with two physical layers per checkpoint layer (2N attention, 2N+1 feed-forward), "vision...",
// "mtp.<depth>...", "head...".
#pragma once

#include <string>

#include "reference/array.h"

namespace assay::reference {

/// A choice per row, with what is needed to tell whether another choice would have been as good.
template <class T>
struct Decision {
  Index chosen;                                 ///< [rows, width], -1 = none
  std::vector<double> margin;                   ///< [rows] threshold gap; infinity if nothing was left out
  std::vector<std::vector<std::int64_t>> tied;  ///< [rows] candidates equal at the threshold (pools or experts)
  Array<T> scores;                              ///< [rows, candidates]
  Index first_token;                            ///< pools only: [pools] first token; a chosen token's pool decides
  std::int64_t kpool = 0;                       ///< pools only: tokens per pool
  Index visible_start, visible_end;             ///< pools only: [rows], what each query may see
};

template <class T>
class Observer {
 public:
  virtual ~Observer() = default;
  /// A stage's values; the observer may replace them by others of the same shape: later stages then start from those.
  virtual void values(const std::string& /*stage*/, Array<T>& /*value*/) {}
  /// A decision; the observer may replace `chosen` by another choice.
  virtual void decision(const std::string& /*stage*/, Decision<T>& /*decision*/) {}
};

}  // namespace assay::reference
