#include "reference/train/training.h"

#include <set>

#include "reference/model/weights.h"

namespace assay::reference {
namespace {

const std::string kExperts = ".mlp.experts.";
const std::string kScale = "_scale_inv";  // of block FP8: no parameter

/// Experts that no token chose, in layers where others were chosen: their gradient is zero.
template <class T>
void add_idle_experts(const Checkpoint& checkpoint, Tensors<T>& gradient) {
  std::set<std::string> layers;
  for (const auto& [name, values] : gradient)
    if (name.find(kExperts) != std::string::npos) layers.insert(name.substr(0, name.find(kExperts)));
  for (const auto& [name, tensor] : checkpoint.file.tensors()) {
    const std::size_t at = name.find(kExperts);
    if (at == std::string::npos || !layers.count(name.substr(0, at))) continue;
    if (name.size() >= kScale.size() && name.compare(name.size() - kScale.size(), kScale.size(), kScale) == 0) continue;
    if (!gradient.count(name)) gradient.emplace(name, Array<T>(tensor.shape()));
  }
}

}  // namespace

template <class T>
StepReport<T> Training<T>::step(const std::vector<ModelInputs>& micro_batches, const Observers& observers) {
  ASSAY_CHECK(!micro_batches.empty());
  const T share = T(1.0) / T(static_cast<double>(micro_batches.size()));
  StepReport<T> report{T(0.0), {}, T(0.0), 0, settings_.schedule.at(steps_)};
  Tensors<T> gradient;
  Observer<T> nobody;
  for (std::size_t m = 0; m < micro_batches.size(); ++m) {
    const ModelGradients<T> part = gradients(checkpoint_, micro_batches[m], conventions_, settings_.losses,
                                             observers ? observers(m) : nobody, weights_);
    report.loss = report.loss + part.forward.loss[0] * share;
    report.mtp_losses.resize(part.forward.mtp_losses.size(), T(0.0));
    for (std::size_t d = 0; d < report.mtp_losses.size(); ++d)
      report.mtp_losses[d] = report.mtp_losses[d] + part.forward.mtp_losses[d][0] * share;
    for (const auto& [name, values] : part.gradients) {
      Array<T>& sum = gradient.try_emplace(name, Array<T>(values.shape)).first->second;
      for (std::int64_t i = 0; i < values.size(); ++i) sum[i] = sum[i] + values[i] * share;
    }
  }
  add_idle_experts(checkpoint_, gradient);
  report.grad_norm = gradient_norm(gradient);
  report.num_zeros = num_zeros(gradient);
  const T factor = clip_factor(report.grad_norm, settings_.clip_grad_norm);
  AdamWSettings adamw_now = settings_.adamw;
  adamw_now.lr = report.lr;
  ++steps_;
  const Weights stored(checkpoint_, "");
  for (auto& [name, values] : gradient) {
    for (T& value : values.data) value = value * factor;
    auto [weight, fresh] = weights_.try_emplace(name);
    if (fresh) weight->second = stored.get<T>(name);
    adamw(weight->second, values, moments_[name], steps_, adamw_now);
  }
  return report;
}

#define ASSAY_INSTANTIATE(T) template class Training<T>;
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
