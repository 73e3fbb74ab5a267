// Finds the files of the tokenizer and the chat template.
#include "engine/text.h"

namespace sluice {

std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options, const Checkpoint& checkpoint) {
  return Tokenizer::open(options.tokenizer.empty() ? checkpoint.folder : options.tokenizer);
}

std::optional<ChatTemplate> load_chat_template(const EngineOptions& options, const Checkpoint& checkpoint) {
  const std::string config = checkpoint.tokenizer_config();
  if (!config.empty()) return ChatTemplate::from_config(config, checkpoint.folder, options.chat_template);
  return ChatTemplate::from_folder(checkpoint.folder, options.chat_template);
}

TextEnds load_text_ends(const EngineOptions& options, const Checkpoint& checkpoint) {
  return {load_tokenizer(options, checkpoint), load_chat_template(options, checkpoint)};
}

}  // namespace sluice
