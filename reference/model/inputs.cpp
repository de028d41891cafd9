#include "reference/model/inputs.h"

namespace assay::reference {
namespace {

/// [first, last) of the real tokens of a row; throws if they are not contiguous.
std::pair<std::int64_t, std::int64_t> real_stretch(const Tensor& mask, std::int64_t row, std::int64_t length) {
  std::int64_t first = length, last = 0, count = 0;
  for (std::int64_t t = 0; t < length; ++t) {
    const std::int64_t value = mask.integer(row * length + t);
    if (value != 0 && value != 1) {
      throw InputError("attention_mask[" + std::to_string(row) + ", " + std::to_string(t) + "]", std::to_string(value),
                       "0 or 1 is allowed");
    }
    if (value == 0) continue;
    first = std::min(first, t);
    last = t + 1;
    ++count;
  }
  if (count == 0) return {0, 0};
  if (count != last - first) {
    throw InputError("attention_mask row " + std::to_string(row), "padding between real tokens",
                     "real tokens must be contiguous");
  }
  return {first, last};
}

Row plain_row(std::int64_t begin, std::int64_t length, std::int64_t first, std::int64_t last) {
  Row row;
  row.begin = begin;
  row.length = length;
  row.documents.data = {0};
  for (const std::int64_t edge : {first, last, length})
    if (edge > row.documents.data.back()) row.documents.data.push_back(edge);
  row.documents.shape = {row.documents.size()};
  row.visible_start = Index({length});
  row.visible_end = Index({length});
  row.real.assign(static_cast<std::size_t>(length), false);
  for (std::int64_t t = first; t < last; ++t) {
    row.real[static_cast<std::size_t>(t)] = true;
    row.visible_start[t] = first;
    row.visible_end[t] = t + 1;
  }
  return row;
}

Row packed_row(const Tensor& cu_seqlens, std::int64_t length) {
  if (cu_seqlens.shape().size() != 1 || is_real(cu_seqlens.dtype())) {
    throw InputError("cu_seqlens",
                     std::string(name_of(cu_seqlens.dtype())) + " of shape " + assay::to_string(cu_seqlens.shape()),
                     "integers of shape [documents + 1] are needed");
  }
  const std::vector<std::int64_t> edges = cu_seqlens.integers();
  if (edges.empty() || edges.front() != 0 || edges.back() != length) {
    throw InputError("cu_seqlens", "documents that do not cover the row",
                     "the first entry must be 0 and the last the row length " + std::to_string(length));
  }
  for (std::size_t d = 1; d < edges.size(); ++d)
    if (edges[d] < edges[d - 1]) {
      throw InputError("cu_seqlens[" + std::to_string(d) + "]", std::to_string(edges[d]), "entries must not decrease");
    }
  Row row = plain_row(0, length, 0, length);
  row.documents = Index({static_cast<std::int64_t>(edges.size())}, edges);
  for (std::size_t d = 0; d + 1 < edges.size(); ++d)
    for (std::int64_t t = edges[d]; t < edges[d + 1]; ++t) row.visible_start[t] = edges[d];
  return row;
}

void check_same_shape(const Tensor& tensor, const char* name, const Shape& shape) {
  if (is_real(tensor.dtype())) throw InputError(name, std::string(name_of(tensor.dtype())), "integers are needed");
  if (tensor.shape() == shape) return;
  throw InputError(name, "shape " + assay::to_string(tensor.shape()),
                   "the shape of input_ids " + assay::to_string(shape) + " is needed");
}

}  // namespace

std::vector<Row> rows_of(const ModelInputs& inputs, const ModelConfig& config) {
  const Shape& shape = inputs.input_ids.shape();
  if (shape.size() != 2 || is_real(inputs.input_ids.dtype())) {
    throw InputError("input_ids",
                     std::string(name_of(inputs.input_ids.dtype())) + " of shape " + assay::to_string(shape),
                     "integers of shape [batch, tokens] are needed");
  }
  const std::int64_t batch = shape[0], length = shape[1];
  for (std::int64_t i = 0; i < inputs.input_ids.size(); ++i) {
    const std::int64_t id = inputs.input_ids.integer(i);
    if (id >= 0 && id < config.vocab_size) continue;
    throw InputError("input_ids element " + std::to_string(i), std::to_string(id),
                     "0 to " + std::to_string(config.vocab_size - 1) + " is allowed");
  }
  if (inputs.labels) check_same_shape(*inputs.labels, "labels", shape);
  if (inputs.cu_seqlens) {
    if (batch != 1) {
      throw InputError("cu_seqlens", "a batch of " + std::to_string(batch) + " rows", "packed documents need one row");
    }
    if (inputs.attention_mask)
      throw InputError("attention_mask", "given together with cu_seqlens", "only one is allowed");
    return {packed_row(*inputs.cu_seqlens, length)};
  }
  if (inputs.attention_mask) check_same_shape(*inputs.attention_mask, "attention_mask", shape);
  std::vector<Row> rows;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto [first, last] =
        inputs.attention_mask ? real_stretch(*inputs.attention_mask, b, length) : std::pair{std::int64_t{0}, length};
    rows.push_back(plain_row(b * length, length, first, last));
  }
  return rows;
}

}  // namespace assay::reference
