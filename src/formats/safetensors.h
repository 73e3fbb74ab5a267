// The safetensors file format (https://huggingface.co/docs/safetensors): checked reader and a writer.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace sluice {

// Entries of a whole mapped file in file order; their data points into `file`. `name` is for messages. Rules, stricter
// than the format's own: header at most 32 MiB and 300 000 tensors, keys unique, offsets in order without gap or
// overlap, the whole buffer covered, dtype x shape = length, at most four dimensions.
// Throws Error(kCorruptFile) that names the file and the tensor; Error(kUnsupportedModel) for a type or rank that the
// format has and Sluice has not. The format promises no alignment, so neither do the entries.
std::vector<TensorEntry> read_safetensors(std::span<const std::byte> file, const std::string& name,
                                          std::map<std::string, std::string>* metadata = nullptr);

struct NamedTensor {
  std::string name;  // unique in a file
  Tensor tensor;     // dense, of a type with a safetensors spelling
};
// Writes through a temporary file that is renamed, so that no half-written file is ever seen. Tensors keep their order
// among those of equal element size; wider elements come first, so that all are aligned. The metadata is what
// transformers asks for ("format": "pt"). Throws Error(kInternal) that names the file when the disk refuses.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace sluice
