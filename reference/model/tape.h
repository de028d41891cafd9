// What a forward pass leaves behind for its backward: the ops in order, each with its explicit backward formula
// (reference/ops/*_backward.h). A tape that does not record keeps nothing.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/array.h"

namespace assay::reference {

/// A value of the pass and, during the backward, the gradient of the loss with respect to it (size 0: none so far).
template <class T>
struct Node {
  Array<T> value;
  Array<T> gradient;
};

template <class T>
using Var = std::shared_ptr<Node<T>>;

template <class T>
class Tape {
 public:
  explicit Tape(bool recording) : recording_(recording) {}

  bool recording() const { return recording_; }

  /// A value without history.
  Var<T> constant(Array<T> value) const { return std::make_shared<Node<T>>(Node<T>{std::move(value), {}}); }

  /// A parameter: the same node for the same name while recording, so that all its uses add up.
  Var<T> parameter(const std::string& name, const std::function<Array<T>()>& load);

  /// Gives a parameter a value of its own before the pass: parameter(name, ...) returns it and loads nothing.
  void preset(const std::string& name, Array<T> value);

  /// The outputs of one op. `backward` reads their gradients (any may be empty) and adds to those of its inputs; it is
  /// called once, if one of the outputs got a gradient.
  std::vector<Var<T>> record(std::vector<Array<T>> values, std::function<void(const std::vector<Var<T>>&)> backward);
  /// The same for an op with one output.
  Var<T> record(Array<T> value, std::function<void(const Array<T>&)> backward);

  /// Adds `gradient` to a node's (element by element, in the order of the calls).
  static void add(const Var<T>& node, const Array<T>& gradient);

  /// Runs the recorded ops in reverse from `root` with the gradient `seed`; may be called once.
  void backward(const Var<T>& root, const Array<T>& seed);

  /// Gradients by parameter name, for every parameter that a backward reached.
  std::map<std::string, Array<T>> gradients() const;
  /// Parameters that were used and got no gradient.
  std::vector<std::string> without_gradient() const;
  /// Bytes of the values that the recorded ops hold (one per node), as stored in scalar T.
  std::int64_t saved_bytes() const { return saved_bytes_; }

 private:
  struct Step {
    std::vector<Var<T>> outputs;
    std::function<void(const std::vector<Var<T>>&)> backward;
  };

  bool recording_;
  std::vector<Step> steps_;
  std::map<std::string, Var<T>> parameters_;
  std::int64_t saved_bytes_ = 0;
};

}  // namespace assay::reference
