// Where tokenizer and template are looked for.
#include "engine/text.h"

namespace sluice {

std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options, const Checkpoint& checkpoint) {
  return Tokenizer::open(options.tokenizer.empty() ? checkpoint.folder : options.tokenizer);
}

std::optional<ChatTemplate> load_chat_template(const EngineOptions& options, const Checkpoint& checkpoint) {
  return ChatTemplate::from_folder(checkpoint.folder, options.chat_template);
}

}  // namespace sluice
