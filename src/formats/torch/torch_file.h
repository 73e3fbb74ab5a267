// Files of PyTorch's torch.save (pytorch_model.bin, .pt, .pth): a ZIP archive with a pickle of the state dict and one
// member per storage. Read without running anything (formats/torch/pickle.h).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace sluice {

struct TorchFile {
  std::vector<TensorEntry> entries;           // in the order of the state dict
  std::vector<std::vector<std::byte>> dense;  // tensors stored with gaps or transposed, put in order
};

// Entries point into the mapped `file` or into `dense`; tensors that share a storage share its bytes. `name` stands for
// the file in messages. A state dict maps names to tensors and holds nothing else, as transformers writes it.
// Throws Error(kCorruptFile) that names the tensor or the opcode; Error(kUnsupportedModel) for what torch writes and
// Sluice does not read: the formats before torch 1.6, TorchScript, tensors of a type or rank that Sluice lacks.
TorchFile read_torch_file(std::span<const std::byte> file, const std::string& name);

}  // namespace sluice
