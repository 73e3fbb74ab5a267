// Where tokenizer and template are looked for.
#include "engine/text.h"

#include <fmt/core.h>

#include <filesystem>

#include "sluice/error.h"

namespace sluice {

std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options, const Checkpoint& checkpoint) {
  const std::filesystem::path given = options.tokenizer.empty() ? checkpoint.folder : options.tokenizer;
  const std::filesystem::path file = std::filesystem::is_directory(given) ? given / "tokenizer.json" : given;
  if (!std::filesystem::exists(file)) {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: no tokenizer.json there", given.string()));
  }
  return Tokenizer::from_file(file.string());
}

std::optional<ChatTemplate> load_chat_template(const EngineOptions& options, const Checkpoint& checkpoint) {
  return ChatTemplate::from_folder(checkpoint.folder, options.chat_template);
}

}  // namespace sluice
