// The file of packed weights that belongs to a plan.
#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "engine/load.h"

namespace sluice {

// Opens the plan's file in the folder options.packed_cache. The file's name identifies everything that packed weights
// depend on: the checkpoint, the packed types and layout, the backend and the program. The checkpoint is identified by
// its configuration, its tensors, its files' sizes and times, and a few bytes of the files, but not by their paths. A
// rank has a file of its own for its part of the model.
// Throws PackedFileError.
std::shared_ptr<PackedFile> open_packed_file(const EngineOptions& options, const LoadPlan& plan, ThreadPool& pool);

// What --packed-cache-check means for the plan. Throws Error(kInvalidRequest) for an unknown value.
PackedFileCheck packed_file_check(const EngineOptions& options, const LoadPlan& plan);

// Whether the packed weights leave enough memory for the rest, so that all of them should be read at once.
bool fits_in_memory(const LoadPlan& plan);

// Returns load(options). If the file turns out to be damaged while a device's weights are copied from it, calls load()
// again, which packs the weights anew. A damaged file that cannot be deleted is left out then.
template <class F>
auto load_again_if_damaged(const EngineOptions& options, F&& load) {
  EngineOptions again = options;
  try {
    return load(options);
  } catch (const PackedFileDamaged& e) {
    log::warning("--packed-cache: {}; the weights are packed again", e.what());
    if (!e.deleted) again.packed_cache.clear();
  }
  return load(again);
}

}  // namespace sluice
