// The base class of engines for all tasks: a loaded model, its tokenizer and its chat template.
#pragma once

#include <memory>
#include <optional>

#include "base/json.h"
#include "chat/chat_template.h"
#include "engine/load.h"
#include "engine/text.h"
#include "sluice/engine.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

// What clients learn of a model that is loaded so.
ModelInfo model_info(const LoadPlan& plan, const std::optional<ChatTemplate>& chat_template, const TextEnds& text);

class TextEngine : public Engine {
 public:
  const ModelInfo& model() const override { return info_; }
  std::vector<TokenId> tokenize(std::string_view text, bool add_special_tokens) const override;
  std::string detokenize(std::span<const TokenId> tokens, bool skip_special_tokens) const override;
  std::string token_text(TokenId token) const override;
  std::string token_bytes(TokenId token) const override;
  std::string render_chat(const ChatPrompt& chat) const override;
  std::string tokenizer_config() const override { return config_; }
  std::shared_ptr<const PromptVectors> read_prompt_vectors(std::string_view file,
                                                           const std::string& param) const override;
  Request chat_request(ChatRequest chat) const override;
  PooledText encode(std::string_view text, std::optional<std::string_view> pair,
                    const Truncation& truncation) const override;

 protected:
  TextEngine(std::unique_ptr<ThreadPool> pool, LoadedModel loaded, TextEnds text);

  const std::unique_ptr<ThreadPool> pool_;
  LoadedModel loaded_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const std::optional<ChatTemplate> template_;
  const std::vector<TokenId> first_tokens_;  // that the tokenizer puts before every text
  const std::string first_text_;             // of these tokens, if the template lacks them
  const Json template_kwargs_;               // variables that every conversation has
  const std::string config_;                 // tokenizer_config()
  const ReasoningSyntax* const reasoning_;   // null: the model's thoughts are not looked for
  ModelInfo info_;                           // final when the engine's constructor returns
};

}  // namespace sluice
