// Loads what turns text into tokens: the tokenizer (required) and the chat template (not every model has one).
#pragma once

#include <memory>
#include <optional>

#include "chat/answer_parser.h"
#include "chat/chat_template.h"
#include "formats/checkpoint.h"
#include "sluice/options.h"
#include "sluice/request.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

// Loads the tokenizer of --tokenizer, or by default the checkpoint's (Tokenizer::open). Throws Error.
std::unique_ptr<Tokenizer> load_tokenizer(const EngineOptions& options, const Checkpoint& checkpoint);

// Loads the template of --chat-template, or by default the checkpoint's. Special tokens come from the checkpoint.
// Throws Error.
std::optional<ChatTemplate> load_chat_template(const EngineOptions& options, const Checkpoint& checkpoint);

// The syntaxes of calls and thoughts that the options name or the template tells. Throws Error for unknown names, with
// those that are known.
AnswerSyntax find_answer_syntax(const EngineOptions& options, const std::optional<ChatTemplate>& chat_template);

struct TextEnds {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  AnswerSyntax syntax{};
  SamplingParams sampling{};      // defaults
  std::string config{};           // see Engine::tokenizer_config
  std::string template_kwargs{};  // JSON object of variables that every conversation has; empty: none
};
// Loads tokenizer, template and defaults, and finds the syntaxes. Throws Error.
TextEnds load_text_ends(const EngineOptions& options, const Checkpoint& checkpoint);

// Throws Error(kUnsupportedModel) unless the draft model's tokens are those of the model.
void check_same_tokens(const Tokenizer& tokenizer, const Checkpoint& draft);

}  // namespace sluice
