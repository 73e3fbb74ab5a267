// Extracts the text decoder from a multimodal checkpoint. Text gives the same results; the parts for images and sound
// are skipped.
#pragma once

#include <map>
#include <string>

#include "formats/checkpoint.h"

namespace sluice {

using Tensors = std::map<std::string, TensorEntry, std::less<>>;

// Does nothing unless `config` has an architecture "...ForConditionalGeneration", or another known multimodal one, with
// a known text decoder inside. Then the decoder's configuration ("text_config" or another object, completed with the
// defaults of transformers' classes) replaces `config`. It names the decoder's own architecture. The decoder's tensors
// are renamed as in a text checkpoint, and all others are removed.
void take_text_part(Config& config, Tensors& tensors);

}  // namespace sluice
