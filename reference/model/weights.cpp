#include "reference/model/weights.h"

#include "reference/ops/fp8.h"

namespace assay::reference {
namespace {

constexpr std::int64_t kDefaultBlock =
    128;  // weight_block_size of the public FP8 checkpoint, if the config does not say

}  // namespace

template <class T>
Array<T> Weights::get(const std::string& name) const {
  const Tensor& tensor = checkpoint_.file.at(prefix_ + name);
  const std::string scale_name = prefix_ + name + "_scale_inv";
  if (tensor.dtype() != DType::kE4M3) return load<T>(tensor);
  if (!checkpoint_.file.has(scale_name)) {
    throw InputError(checkpoint_.folder.string() + ": tensor " + prefix_ + name, "F8_E4M3 without " + scale_name,
                     "block FP8 weights need their scales");
  }
  const std::int64_t block = checkpoint_.config.fp8_block.value_or(kDefaultBlock);
  return dequantize_block(load<T>(tensor), load<T>(checkpoint_.file.at(scale_name)), block, block);
}

#define ASSAY_INSTANTIATE(T) template Array<T> Weights::get(const std::string&) const;
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
