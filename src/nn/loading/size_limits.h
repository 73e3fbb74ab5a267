// Bounds the sizes of a configuration by the tensors of the checkpoint before anything is built from them. A stranger's
// config.json may ask for a million layers.
#pragma once

#include "formats/checkpoint.h"

namespace sluice {

// Throws Error(kUnsupportedModel) that names the key and what the file has, if
// - a number of layers, blocks, groups or shared experts is above the number of tensors and above 64, or
// - a width, or a number of heads, experts or tokens, is above the largest dimension of any tensor and above 65536.
// Looks into nested objects, too. Marks no key as read.
void check_sizes(const Checkpoint& checkpoint);

}  // namespace sluice
