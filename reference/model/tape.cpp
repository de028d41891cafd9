#include "reference/model/tape.h"

namespace assay::reference {

template <class T>
Var<T> Tape<T>::parameter(const std::string& name, const std::function<Array<T>()>& load) {
  const auto given = parameters_.find(name);
  if (!recording_) return given != parameters_.end() ? given->second : constant(load());
  Var<T>& node = parameters_[name];
  if (!node) node = constant(load());
  return node;
}

template <class T>
void Tape<T>::preset(const std::string& name, Array<T> value) {
  parameters_[name] = constant(std::move(value));
}

template <class T>
std::vector<Var<T>> Tape<T>::record(std::vector<Array<T>> values,
                                    std::function<void(const std::vector<Var<T>>&)> backward) {
  std::vector<Var<T>> outputs;
  for (Array<T>& value : values) outputs.push_back(constant(std::move(value)));
  if (recording_) {
    for (const Var<T>& output : outputs) saved_bytes_ += output->value.size() * static_cast<std::int64_t>(sizeof(T));
    steps_.push_back({outputs, std::move(backward)});
  }
  return outputs;
}

template <class T>
Var<T> Tape<T>::record(Array<T> value, std::function<void(const Array<T>&)> backward) {
  std::vector<Array<T>> values;
  values.push_back(std::move(value));
  return record(std::move(values), [backward = std::move(backward)](
                                       const std::vector<Var<T>>& outputs) { backward(outputs.front()->gradient); })
      .front();
}

template <class T>
void Tape<T>::add(const Var<T>& node, const Array<T>& gradient) {
  if (gradient.size() == 0) return;
  ASSAY_CHECK(gradient.size() == node->value.size());
  if (node->gradient.size() == 0) {
    node->gradient = gradient.reshaped(node->value.shape);
    return;
  }
  for (std::int64_t i = 0; i < gradient.size(); ++i) node->gradient[i] = node->gradient[i] + gradient[i];
}

template <class T>
void Tape<T>::backward(const Var<T>& root, const Array<T>& seed) {
  add(root, seed);
  while (!steps_.empty()) {
    Step step = std::move(steps_.back());
    steps_.pop_back();
    bool reached = false;
    for (const Var<T>& output : step.outputs) reached = reached || output->gradient.size() > 0;
    if (reached) step.backward(step.outputs);
  }
}

template <class T>
std::map<std::string, Array<T>> Tape<T>::gradients() const {
  std::map<std::string, Array<T>> result;
  for (const auto& [name, node] : parameters_)
    if (node->gradient.size() > 0) result.emplace(name, node->gradient);
  return result;
}

template <class T>
std::vector<std::string> Tape<T>::without_gradient() const {
  std::vector<std::string> names;
  for (const auto& [name, node] : parameters_)
    if (node->gradient.size() == 0) names.push_back(name);
  return names;
}

#define ASSAY_INSTANTIATE(T) template class Tape<T>;
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
