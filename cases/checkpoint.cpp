#include "cases/checkpoint.h"

#include <algorithm>

#include <fmt/format.h>

namespace assay {
namespace {

/// Block side of the FP8 weight scales when the config has no quantization_config (model.md section 1).
constexpr std::int64_t kFp8Block = 128;

/// "x.weight" -> "x.weight_scale_inv".
std::string scale_name(const std::string& weight) { return weight + "_scale_inv"; }

class Auditor {
 public:
  Auditor(const Checkpoint& checkpoint, std::vector<TensorFault>& faults)
      : tensors_(checkpoint.file.tensors()), block_(checkpoint.config.fp8_block.value_or(kFp8Block)), faults_(faults) {}

  void expect(const ExpectedTensor& expected) {
    expected_.push_back(expected.name);
    const Tensor* tensor = find(expected.name);
    if (tensor == nullptr) {
      report(expected.name, "missing", fmt::format("a tensor of shape {} is needed", to_string(expected.shape)));
      return;
    }
    check_dtype(expected, *tensor);
    check_shape(expected.name, *tensor, expected.shape);
    if (expected.may_be_fp8 && tensor->dtype() == DType::kE4M3) expect_scale(expected);
  }

  void report_unexpected() {
    std::sort(expected_.begin(), expected_.end());
    for (const auto& [name, tensor] : tensors_) {
      if (std::binary_search(expected_.begin(), expected_.end(), name)) continue;
      report(name, "unexpected",
             fmt::format("{} of shape {}; the config asks for no such tensor", name_of(tensor.dtype()),
                         to_string(tensor.shape())));
    }
  }

 private:
  const Tensor* find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }

  void report(const std::string& name, const std::string& fault, const std::string& detail) {
    faults_.push_back({name, fault, detail});
  }

  void check_dtype(const ExpectedTensor& expected, const Tensor& tensor) {
    const DType dtype = tensor.dtype();
    if (expected.keep_f32) {
      if (dtype != DType::kF32) {
        report(expected.name, "wrong dtype", fmt::format("{}; F32 is needed", name_of(dtype)));
      }
      return;
    }
    const bool wide = dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32 || dtype == DType::kF64;
    if (wide || (expected.may_be_fp8 && dtype == DType::kE4M3)) return;
    report(expected.name, "wrong dtype",
           fmt::format("{}; BF16, F16, F32{} F64 is needed", name_of(dtype),
                       expected.may_be_fp8 ? ", F8_E4M3 (with scales) or" : " or"));
  }

  void check_shape(const std::string& name, const Tensor& tensor, const Shape& shape) {
    if (tensor.shape() == shape) return;
    report(name, "wrong shape", fmt::format("{}; {} is needed", to_string(tensor.shape()), to_string(shape)));
  }

  void expect_scale(const ExpectedTensor& weight) {
    const std::string name = scale_name(weight.name);
    Shape shape;
    for (const std::int64_t size : weight.shape) shape.push_back((size + block_ - 1) / block_);
    expected_.push_back(name);
    const Tensor* scale = find(name);
    if (scale == nullptr) {
      report(name, "missing", fmt::format("F32 of shape {} is needed beside an F8_E4M3 weight", to_string(shape)));
      return;
    }
    if (scale->dtype() != DType::kF32) {
      report(name, "wrong dtype", fmt::format("{}; F32 is needed", name_of(scale->dtype())));
    }
    check_shape(name, *scale, shape);
  }

  const std::map<std::string, Tensor>& tensors_;
  const std::int64_t block_;
  std::vector<TensorFault>& faults_;
  std::vector<std::string> expected_;
};

}  // namespace

Checkpoint open_checkpoint(const std::filesystem::path& folder) {
  ModelConfig config = read_config(folder / "config.json");
  return {folder, std::move(config), TensorFile::open_folder(folder)};
}

std::vector<TensorFault> audit(const Checkpoint& checkpoint) {
  std::vector<TensorFault> faults;
  Auditor auditor(checkpoint, faults);
  for (const ExpectedTensor& expected : expected_tensors(checkpoint.config)) auditor.expect(expected);
  auditor.report_unexpected();
  std::stable_sort(faults.begin(), faults.end(),
                   [](const TensorFault& a, const TensorFault& b) { return a.name < b.name; });
  return faults;
}

}  // namespace assay
