// Reading and writing safetensors files.
//
// File: 8 bytes little endian header length N, N bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin,
// end]},
// "__metadata__": {string: string}}, then the data. The data must be covered by the tensors exactly: no holes, no
// overlaps.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cases/tensor.h"

namespace assay {

/// A mapped safetensors file (or several: a sharded index). Tensors are views that keep the mapping alive.
class TensorFile {
 public:
  /// Maps one `.safetensors` file. Everything is checked before any tensor is handed out; each fault is one InputError
  /// that names the file and the tensor: truncated, header longer than the file, header above 100 MB, not JSON,
  /// duplicate name, unknown dtype, shape that overflows, offsets out of order or of the wrong length, overlap, hole,
  /// trailing bytes.
  static TensorFile open(const std::filesystem::path& file);

  /// A checkpoint folder: `model.safetensors`, or `model.safetensors.index.json` with the shards it names.
  static TensorFile open_folder(const std::filesystem::path& folder);

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  /// Throws InputError naming the file and the tensor when absent.
  const Tensor& at(const std::string& name) const;
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// The "__metadata__" strings.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Writes atomically (a temporary file beside it, renamed), tensors in name order, header padded with blanks to 8
/// bytes.
void write_safetensors(const std::filesystem::path& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Writes text atomically: a temporary file in the same folder, synced, then renamed. Throws InputError naming the
/// file.
void write_file_atomically(const std::filesystem::path& file, const std::string& text);

}  // namespace assay
