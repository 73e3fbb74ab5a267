// What of a GGUF checkpoint other modules see besides its Hugging Face form.
#pragma once

#include "formats/gguf/file.h"

namespace sluice {

// Returns the metadata and tensors as the file has them; null for a checkpoint in another format.
const GgufFile* gguf_file_of(const Checkpoint& checkpoint);

}  // namespace sluice
