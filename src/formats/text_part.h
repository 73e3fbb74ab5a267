// The text decoder of a checkpoint that also sees or hears, as a checkpoint of its own: text runs as it always would,
// what is for images and sound is left out.
#pragma once

#include <map>
#include <string>

#include "formats/checkpoint.h"

namespace sluice {

using Tensors = std::map<std::string, TensorEntry, std::less<>>;

// When `config` is of an architecture "...ForConditionalGeneration", or another that is known to have one, with a known
// text decoder inside: its configuration ("text_config" or another object, with what transformers' classes default to
// where files leave it out) becomes `config` and names it by the architecture it has alone; its tensors get the names
// they have there, the others go. Else nothing changes.
void take_text_part(Config& config, Tensors& tensors);

}  // namespace sluice
