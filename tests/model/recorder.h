// An observer that keeps every stage of a pass.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reference/decide.h"
#include "reference/model/model.h"

namespace assay::reference {

template <class T>
class Recorder : public Observer<T> {
 public:
  using Change = std::function<void(const std::string& stage, Array<T>& value)>;

  Recorder() = default;
  /// `change` may alter a stage before it is kept and handed on: an implementation with a fault.
  explicit Recorder(Change change) : change_(std::move(change)) {}

  std::vector<std::string> order;  ///< stages as they came
  std::map<std::string, Array<T>> stages;
  std::map<std::string, Decision<T>> decisions;

  void values(const std::string& stage, Array<T>& value) override {
    if (change_) change_(stage, value);
    order.push_back(stage);
    stages[stage] = value;
  }
  void decision(const std::string& stage, Decision<T>& decision) override {
    order.push_back(stage);
    decisions[stage] = decision;
  }

 private:
  Change change_;
};

/// Every stage of a pass in scalar T at `bits`, more where a decision needs it.
template <class T>
Recorder<T> record(const Checkpoint& checkpoint, const ModelInputs& inputs, const Conventions& conventions = {},
                   int bits = 128, const typename Recorder<T>::Change& change = nullptr) {
  for (;; bits *= 2) {
    Context wanted;
    wanted.bits = bits;
    wanted.ties_are_final = bits >= wanted.cap_bits;
    const ContextScope scope(wanted);
    Recorder<T> recorder(change);
    try {
      forward<T>(checkpoint, inputs, conventions, recorder);
      return recorder;
    } catch (const Undecided&) {
    }
  }
}

}  // namespace assay::reference
