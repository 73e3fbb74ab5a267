// Describes everything that packed weights depend on as text.
#include "engine/packed_cache.h"

#include <fmt/core.h>

#include "base/build_id.h"
#include "engine/fingerprint.h"
#include "sluice/error.h"

namespace sluice {
namespace {

std::string contents_of(const EngineOptions& options, const LoadPlan& plan) {
  std::string text =
      fmt::format("backend {}\ndtype {}\nquantization {}\nhead {}\nfp8 activations {}\nkeep types {}\ntask {}\n",
                  plan.backend->name, plan.dtype->name, plan.quantization != nullptr ? plan.quantization->name : "none",
                  options.quantize_head, plan.fp8_activations, plan.keep_types, to_string(plan.task));
  if (plan.ranks.many() || plan.stage.many()) {
    text += fmt::format("rank {} of {}, stage {} of {}, expert parallel {}\n", plan.ranks.rank, plan.ranks.size,
                        plan.stage.rank, plan.stage.size, options.enable_expert_parallel);
  }
  for (const SourceFile& file : plan.checkpoint->files()) {
    text += fmt::format("file {} {}\n", file.bytes, file.modified_ns);
  }
  text += checkpoint_contents(*plan.checkpoint);
  return text + plan.packed_layout;
}

}  // namespace

std::shared_ptr<PackedFile> open_packed_file(const EngineOptions& options, const LoadPlan& plan, ThreadPool& pool) {
  return std::make_shared<PackedFile>(PackedFileSpec{.folder = options.packed_cache,
                                                     .contents = contents_of(options, plan),
                                                     .program = build_id(),
                                                     .sizes = plan.packed_sizes,
                                                     .check = packed_file_check(options, plan),
                                                     .pool = &pool,
                                                     .from_device = !plan.device->memory().host_accessible()});
}

bool fits_in_memory(const LoadPlan& plan) { return plan.packed_bytes() <= plan.memory.available_bytes / 4 * 3; }

PackedFileCheck packed_file_check(const EngineOptions& options, const LoadPlan& plan) {
  const std::string& value = options.packed_cache_check;
  // A device gets all of the file at once, and whoever copies it compares. A plan for the check of options has none.
  const bool copied = plan.device != nullptr && !plan.device->memory().host_accessible();
  if (value == "off") return PackedFileCheck::kOff;
  if (copied && (value == "auto" || value == "load" || value == "background")) return PackedFileCheck::kByReader;
  if (value == "load") return PackedFileCheck::kOnLoad;
  if (value == "background") return PackedFileCheck::kInBackground;
  if (value == "auto") return fits_in_memory(plan) ? PackedFileCheck::kOnLoad : PackedFileCheck::kInBackground;
  throw Error(
      ErrorCode::kInvalidRequest,
      fmt::format("--packed-cache-check: unknown value '{}' (expected one of: auto, load, background, off)", value));
}

}  // namespace sluice
