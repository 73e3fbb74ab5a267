// Extracts the text decoder from a multimodal checkpoint. Text gives the same results; the parts for images and sound
// are skipped.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "formats/checkpoint.h"

namespace sluice {

// Tells which modules of a multimodal model are in its text decoder.
class TextPart {
 public:
  // `layers` has the prefixes of layers whose numbers change ("model.layers.4."), and their prefixes in the decoder; an
  // empty one for layers that are left out.
  explicit TextPart(std::map<std::string, std::string> layers) : layers_(std::move(layers)) {}

  // Returns the module's name in the decoder, and nothing for modules of other parts. Knows the names of the files and
  // those of transformers, which differ.
  std::optional<std::string> module(std::string_view name) const;

 private:
  std::map<std::string, std::string> layers_;
};

// Does nothing, and returns null, unless `config` has an architecture "...ForConditionalGeneration", another known
// multimodal one, or "...ForSequenceClassification" or "...Model" with a configuration of its text decoder, and that
// decoder is known. Then the decoder's configuration ("text_config" or another object, completed with the defaults of
// transformers' classes) replaces `config`. It names the decoder's own architecture. The decoder's tensors are renamed
// as in a text checkpoint, and all others are removed.
std::shared_ptr<const TextPart> take_text_part(Config& config, TensorMap& tensors);

}  // namespace sluice
