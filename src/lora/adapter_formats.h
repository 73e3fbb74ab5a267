// The formats of adapters: one file each.
#pragma once

#include <memory>
#include <string>

#include "lora/adapter.h"

namespace sluice {

constexpr int kMostRank = 1024;  // a module may have

std::shared_ptr<Adapter> read_peft_adapter(const std::string& folder);
std::shared_ptr<Adapter> read_gguf_adapter(const std::string& file);

// Where the model is the text decoder of a multimodal checkpoint: gives the modules their names in the decoder, and
// leaves out those of other parts, with a warning. Texts do not reach them. Throws Error(kUnsupportedModel) if no
// module remains.
void take_text_modules(Adapter& adapter, const Checkpoint& model);

}  // namespace sluice
