// The safetensors file format (https://huggingface.co/docs/safetensors): a checked reader, and a writer.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace sluice {

// Returns the entries of a whole mapped file in file order; their data points into `file`. `name` appears in error
// messages. The rules are stricter than the format's own: a header of at most 32 MiB, at most 300 000 tensors, unique
// keys, at most four dimensions, dtype x shape = length. Offsets are in order without gap or overlap and cover the
// whole buffer. Throws Error(kCorruptFile) that names the file and the tensor. Throws Error(kUnsupportedModel) for a
// type or rank that the format allows but Sluice does not. Entries may be unaligned, because the format does not
// guarantee alignment.
std::vector<TensorEntry> read_safetensors(std::span<const std::byte> file, const std::string& name,
                                          std::map<std::string, std::string>* metadata = nullptr);

struct NamedTensor {
  std::string name;  // unique in the file
  Tensor tensor;     // dense, with a type that has a safetensors spelling
};
// Writes a temporary file and renames it, so that no incomplete file is ever visible. Wider element types come first,
// so that all tensors are aligned; tensors of equal width keep their order. The metadata is what transformers expects
// ("format": "pt"). Throws Error(kInternal) that names the file when writing fails.
void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace sluice
