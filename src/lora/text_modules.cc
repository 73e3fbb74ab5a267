// Adapters of multimodal models, which may also change the parts for images and sound.
#include <fmt/core.h>

#include <algorithm>

#include "base/log.h"
#include "formats/text_part.h"
#include "lora/adapter_formats.h"
#include "sluice/error.h"

namespace sluice {

void take_text_modules(Adapter& adapter, const Checkpoint& model) {
  if (model.text_part == nullptr) return;
  const size_t all = adapter.modules.size();
  std::vector<Adapter::Module> kept;
  std::string left_out;
  adapter.rank = 0;
  for (Adapter::Module& module : adapter.modules) {
    std::optional<std::string> name = model.text_part->module(module.name);
    if (!name) {
      left_out = module.name;
      continue;
    }
    module.name = *std::move(name);
    adapter.rank = std::max(adapter.rank, static_cast<int>(module.rank));
    kept.push_back(std::move(module));
  }
  adapter.modules = std::move(kept);
  if (adapter.modules.empty()) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{}: changes only parts of the model that are not loaded, such as module '{}'",
                            adapter.folder, left_out));
  }
  if (left_out.empty()) return;
  log::warning("{}: ignored {} modules of parts of the model that are not loaded, such as '{}'", adapter.folder,
               all - adapter.modules.size(), left_out);
}

}  // namespace sluice
