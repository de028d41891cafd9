// What a forward pass is given, and which tokens belong together.
#pragma once

#include <optional>

#include "cases/config.h"
#include "reference/array.h"

namespace assay::reference {

/// Token ids of a batch of rows of equal length, with what says how they are to be read.
struct ModelInputs {
  Tensor input_ids;                      ///< [B, L] integers
  std::optional<Tensor> attention_mask;  ///< [B, L], 1 = real token; real tokens must be contiguous in a row
  std::optional<Tensor> cu_seqlens;      ///< packed documents of the single row (B = 1): [documents + 1], from 0 to L
  std::optional<Tensor> labels;          ///< [B, L], not shifted; -100 is ignored
  std::optional<Tensor> pixel_values;    ///< [patches, channels*time*height*width]
  std::optional<Tensor> image_grid_thw;  ///< [images, 3]: frames, patch rows, patch columns
};

/// One row of the batch: tokens [begin, begin + length) of the flattened batch.
struct Row {
  std::int64_t begin = 0, length = 0;
  Index documents;         ///< cu_seqlens local to the row, padding stretches included as documents of their own
  Index visible_start;     ///< [length] first token that query t may see
  Index visible_end;       ///< [length] one past the last; equal to the start for padding
  std::vector<bool> real;  ///< [length]
};

/// Checks the inputs against the config (vocabulary, shapes, contiguous real tokens, documents that cover the row) and
/// describes the rows. Throws InputError naming the input, what was found and what is allowed.
std::vector<Row> rows_of(const ModelInputs& inputs, const ModelConfig& config);

}  // namespace assay::reference
