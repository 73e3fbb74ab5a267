// The file of packed weights that belongs to a plan.
#pragma once

#include <memory>

#include "engine/load.h"

namespace sluice {

// In the folder options.packed_cache. Packed weights depend on the checkpoint (configuration, tensors, sizes and times
// of its files, a few bytes of them, not their paths), on what they are packed as, on the backend and on the program.
// Throws PackedFileError.
std::shared_ptr<PackedFile> open_packed_file(const EngineOptions& options, const LoadPlan& plan);

}  // namespace sluice
