// The formats of adapters: one file each.
#pragma once

#include <memory>
#include <string>

#include "lora/adapter.h"

namespace sluice {

constexpr int kMostRank = 1024;  // a module may have

std::shared_ptr<Adapter> read_peft_adapter(const std::string& folder);
std::shared_ptr<Adapter> read_gguf_adapter(const std::string& file);

}  // namespace sluice
