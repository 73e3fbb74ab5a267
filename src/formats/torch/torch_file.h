// Reads files of PyTorch's torch.save (pytorch_model.bin, .pt, .pth): a ZIP archive with a pickle of the state dict and
// one member per storage. No code is run (formats/torch/pickle.h).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace sluice {

struct TorchFile {
  std::vector<TensorEntry> entries;           // in the order of the state dict
  std::vector<std::vector<std::byte>> dense;  // memory of tensors that were stored with gaps or transposed
};

// Returns the tensors of a mapped file. Entries point into `file` or into `dense`; tensors that share a storage share
// its bytes. `name` is the file name in error messages. A state dict maps names to tensors and contains nothing else,
// as transformers writes it. Throws Error(kCorruptFile) that names the tensor or the opcode. Throws
// Error(kUnsupportedModel) for formats that Sluice does not read: those before torch 1.6, TorchScript, and tensors with
// unsupported types or ranks.
TorchFile read_torch_file(std::span<const std::byte> file, const std::string& name);

// The same for a file that torch.save wrote of one tensor: the entry has no name.
TorchFile read_torch_tensor(std::span<const std::byte> file, const std::string& name);

}  // namespace sluice
