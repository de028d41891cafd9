#include "harness/training.h"

#include <cmath>
#include <mutex>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cases/error.h"
#include "harness/ensemble.h"
#include "harness/glob.h"
#include "reference/parallel.h"
#include "reference/train/training.h"

namespace assay::harness {
namespace {

using nlohmann::json;
using reference::Array;
using reference::Sampled;

/// Members of the ensemble of whole runs. Half of kEnsemble halves the time; Student's t at fewer degrees of freedom
/// widens the limit (3.7 times) so that its confidence stays the same.
constexpr int kRuns = 4;

/// One run whose choices at a step are made by `resolve`.
template <class T>
TrainingRun run_with(const Checkpoint& checkpoint, const TrainingRecord& record, const GradientNames& names,
                     const std::function<Resolution(std::size_t step, const reference::Tensors<T>& weights)>& resolve) {
  reference::Training<T> training(checkpoint, reference::Conventions{}, record.settings);
  TrainingRun run;
  for (std::size_t step = 0; step < record.steps.size(); ++step) {
    run.steps.push_back(resolve(step, training.weights()));
    std::vector<ForcedObserver<T>> observers;
    for (const auto& choices : run.steps.back().choices) observers.emplace_back(choices);
    const reference::StepReport<T> report = training.step(
        record.steps[step], [&](std::size_t micro) -> reference::Observer<T>& { return observers.at(micro); });
    run.tensors["loss"].push_back(reference::midpoint(report.loss));
    run.tensors["grad_norm"].push_back(reference::midpoint(report.grad_norm));
    run.curves.values["lm loss"].push_back(reference::midpoint(report.loss));
    run.curves.values["grad-norm"].push_back(reference::midpoint(report.grad_norm));
    run.curves.values["num-zeros"].push_back(static_cast<double>(report.num_zeros));
    for (std::size_t d = 0; d < report.mtp_losses.size(); ++d)
      run.curves.values[fmt::format("mtp_{} loss", d + 1)].push_back(reference::midpoint(report.mtp_losses[d]));
  }
  for (const GradientNames::Group& group : names.groups) {
    const std::string name = "final." + group.recorded;
    if (!record.file.has(name)) continue;
    for (const std::string& tensor : group.tensors) {
      const auto trained = training.weights().find(tensor);
      if (trained != training.weights().end()) {
        for (const T& value : trained->second.data) run.tensors[name].push_back(reference::midpoint(value));
      } else {
        for (const double value : checkpoint.file.at(tensor).reals()) run.tensors[name].push_back(value);
      }
    }
  }
  return run;
}

double number(const std::filesystem::path& file, const json& settings, const char* field) {
  if (!settings.contains(field) || !settings.at(field).is_number()) {
    throw InputError(fmt::format("{}: metadata field optimizer.{}", file.string(), field), "missing or no number", "");
  }
  return settings.at(field).get<double>();
}

}  // namespace

TrainingRecord read_training_record(const std::filesystem::path& file) {
  TrainingRecord record;
  record.file = TensorFile::open(file);
  const auto text = record.file.metadata().find("optimizer");
  const json settings = text == record.file.metadata().end() ? json() : json::parse(text->second, nullptr, false);
  if (!settings.is_object()) {
    throw InputError(file.string() + ": metadata field optimizer", "missing or not JSON",
                     "a training record states its settings");
  }
  if (settings.value("name", "") != "AdamW") {
    throw InputError(file.string() + ": metadata field optimizer.name", settings.value("name", "nothing"), "AdamW");
  }
  if (!settings.contains("betas") || !settings.at("betas").is_array() || settings.at("betas").size() != 2) {
    throw InputError(file.string() + ": metadata field optimizer.betas", "missing", "two numbers");
  }
  record.settings.adamw.beta1 = settings.at("betas").at(0).get<double>();
  record.settings.adamw.beta2 = settings.at("betas").at(1).get<double>();
  record.settings.adamw.eps = number(file, settings, "eps");
  record.settings.adamw.weight_decay = number(file, settings, "weight_decay");
  record.settings.schedule.lr = number(file, settings, "lr");
  record.settings.clip_grad_norm = number(file, settings, "clip_grad_norm");
  const auto micro = static_cast<std::int64_t>(number(file, settings, "micro_batches"));
  const auto steps = static_cast<std::int64_t>(number(file, settings, "steps"));
  const Tensor& ids = record.file.at("input_ids");
  if (micro < 1 || steps < 1 || ids.shape().size() != 3 || ids.shape()[0] != micro * steps) {
    throw InputError(file.string() + ": tensor input_ids", "shape " + to_string(ids.shape()),
                     fmt::format("[{} steps * {} micro-batches, batch, tokens]", steps, micro));
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<reference::ModelInputs> batches;
    for (std::int64_t m = 0; m < micro; ++m) {
      const std::int64_t at = step * micro + m;
      reference::ModelInputs inputs;
      inputs.input_ids = ids.rows(at, at + 1).reshaped({ids.shape()[1], ids.shape()[2]});
      inputs.labels = inputs.input_ids;
      batches.push_back(inputs);
    }
    record.steps.push_back(std::move(batches));
  }
  return record;
}

std::string to_golden(const Curves& curves) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  for (const auto& [name, values] : curves.values) {
    nlohmann::ordered_json steps = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < values.size(); ++i) steps[std::to_string(i + 1)] = values[i];
    root[name] = {{"start_step", 1}, {"end_step", values.size()}, {"step_interval", 1}, {"values", steps}};
  }
  return root.dump(4) + "\n";
}

TrainingRun run_training(const Checkpoint& checkpoint, const TrainingRecord& record, const GradientNames& names,
                         const std::function<void(const std::string&)>& progress) {
  const std::vector<double> losses = record.file.at("loss").reals();
  if (losses.size() != record.steps.size()) {
    throw InputError(record.file.path().string() + ": tensor loss", fmt::format("{} elements", losses.size()),
                     fmt::format("one for each of {} steps", record.steps.size()));
  }
  return run_with<double>(checkpoint, record, names, [&](std::size_t step, const auto& weights) {
    progress(fmt::format("training step {}/{}", step + 1, record.steps.size()));
    return resolve_ties(checkpoint, record.steps[step], weights, losses[step]);
  });
}

std::vector<Check> verify_training(const Checkpoint& checkpoint, const TrainingRecord& record,
                                   const GradientNames& names, const VerifySettings& settings, Curves& curves) {
  reference::Context wanted = reference::context();  // sums and parameters in double, as recorded
  const reference::ContextScope scope(wanted);
  const TrainingRun truth = run_training(checkpoint, record, names, settings.progress);
  curves = truth.curves;
  // One member per thread: the passes inside are short and scale badly.
  std::vector<TrainingRun> samples(kRuns);
  std::mutex reporting;
  reference::parallel_for(kRuns, [&](std::int64_t i) {
    const reference::ContextScope disturbed(member(wanted, static_cast<int>(i)));
    samples[static_cast<std::size_t>(i)] =
        run_with<Sampled>(checkpoint, record, names, [&](std::size_t step, const auto&) {
          const std::lock_guard lock(reporting);
          settings.progress(fmt::format("ensemble {}/{}, step {}", i + 1, kRuns, step + 1));
          return truth.steps[step];
        });
  });
  std::map<std::string, std::vector<double>> deviations;
  for (const TrainingRun& sample : samples)
    for (const auto& [name, values] : truth.tensors)
      deviations[name].push_back(norm_of_difference(values, sample.tensors.at(name)));
  std::int64_t tied = 0, followed = 0;
  for (const Resolution& step : truth.steps) {
    tied += step.tied;
    followed += step.followed;
  }
  std::vector<Check> checks;
  for (const auto& [name, values] : truth.tensors) {
    if (!record.file.has(name) || !glob_match(settings.filter, name)) continue;
    const Tensor& tensor = record.file.at(name);
    if (tensor.size() != static_cast<std::int64_t>(values.size())) {
      throw InputError(record.file.path().string() + ": tensor " + name, "shape " + to_string(tensor.shape()),
                       fmt::format("{} elements are needed", values.size()));
    }
    const Array<double> expected({tensor.size()}, values);
    Check check = judge_norm(tensor, kept(expected), deviations.at(name));
    check.stage = check.recorded = name;
    check.scope = "end to end";
    if (name == "loss" && tied > 0) {
      if (!check.reason.empty()) check.reason += "; ";
      check.reason +=
          fmt::format("{} rows are tied exactly, {} of them resolved as the recorded losses tell", tied, followed);
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace assay::harness
