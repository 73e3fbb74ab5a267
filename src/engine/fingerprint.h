// What a model is, told from the contents of its checkpoint and from how it is loaded, not from where it lies.
#pragma once

#include <string>

#include "engine/load.h"

namespace sluice {

// Returns a text of the configuration and of every tensor's name, type and shape, with bytes from the middle of up to
// 256 tensors: two fine-tuned models of one architecture differ in these alone.
std::string checkpoint_contents(const Checkpoint& checkpoint);

// Returns 64 hexadecimal digits that identify what cached keys and values depend on besides tokens: the contents of the
// checkpoint, the types of weights and cache, and quantization. Equal in every process and for every path.
std::string model_fingerprint(const LoadPlan& plan);

}  // namespace sluice
