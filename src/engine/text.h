// The text ends of a model: its tokenizer (required) and its chat template (not every model has one).
#pragma once

#include <memory>
#include <optional>

#include "chat/chat_template.h"
#include "formats/checkpoint.h"
#include "sluice/options.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

// --tokenizer's, or the checkpoint folder's (Tokenizer::open). Throws Error.
std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options, const Checkpoint& checkpoint);

// --chat-template's, or the checkpoint's; special tokens are the checkpoint's. Throws Error.
std::optional<ChatTemplate> load_chat_template(const EngineOptions& options, const Checkpoint& checkpoint);

struct TextEnds {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
};
// Both. Throws Error.
TextEnds load_text_ends(const EngineOptions& options, const Checkpoint& checkpoint);

}  // namespace sluice
