// The JSON that answers of chat and text completions have in common: identity, usage, choices.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/generation.h"
#include "server/openai/dialect.h"

namespace sluice::server {

struct FormatOptions {
  std::string id;            // "chatcmpl-..."
  std::string object;        // type of a whole answer: "chat.completion"
  std::string chunk_object;  // type of a stream's chunks
  std::string model;
  std::string fingerprint;
  int prompts = 1;
  int n = 1;  // choices per prompt
  bool stream = false;
  bool keeps = false;  // the whole answer is collected, also of a stream
  bool include_usage = false;
  bool continuous_usage = false;
  bool logprobs = false;
  int top_logprobs = 0;
  bool token_ids = false;      // report the ids of all tokens
  bool tokens_as_ids = false;  // log probabilities name tokens by their ids
  bool keep_stop = false;      // the token that ended the text is part of it
  bool thinks = false;         // the model marks its thoughts: usage tells their tokens
  Json kv_transfer{};          // kv_transfer_params of a whole answer; null: none
};

class OpenAiFormat : public AnswerFormat {
 public:
  std::string on_event(int prompt, Event event) final;
  std::string stream_end() final;
  std::string stream_error(const ApiError& error) final;
  std::string body() final;
  HttpResponse error_response(const ApiError& error) final { return to_response(error, kOpenAi); }

 protected:
  struct Choice {
    bool begun = false;
    bool calls_tools = false;
    std::string text;
    std::vector<TokenId> tokens;  // with token_ids, when the answer is collected
    Json logprobs;                // log probabilities collected so far
    size_t characters = 0;        // characters of text and tokens so far
    std::optional<Finish> finish;
    std::string matched = "null";  // what ended the text, as JSON: a stop string or the id of a token
    Usage usage;
  };

  OpenAiFormat(std::shared_ptr<const Engine> engine, FormatOptions options);

  // Adds an event to its choice; with `stream`, returns the chunks for it.
  virtual std::string add(int prompt, int index, Choice& choice, Event& event) = 0;
  virtual Json whole_choice(int index, Choice& choice) = 0;
  virtual void extend_body(Json&) {}
  const Json& whole();  // the answer; called when nothing follows
  bool collects() const { return options_.keeps || !options_.stream; }

  // A chunk with one choice and further members (",..."), given as JSON text.
  std::string chunk(std::string_view choice_json, const Usage& usage, std::string_view members = {}) const;
  // "length", `stopped` ("tool_calls" after calls) or null; what ended the text, under vLLM's name and SGLang's.
  static constexpr std::string_view kUnfinished = R"("finish_reason":null)";
  static std::string finish_members(const Choice& choice, std::string_view stopped = "stop");
  // The text of a token in log probabilities, or its id.
  std::string token_name(TokenId id) const;

  const std::shared_ptr<const Engine> engine_;
  const FormatOptions options_;
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs_;  // by prompt
  std::vector<std::vector<TokenId>> prompts_;                // with token_ids

 private:
  Json usage() const;
  Json usage_json(const Usage& usage) const;

  const int64_t created_;
  const std::string chunk_head_;  // start of every chunk, up to its choices
  std::vector<Choice> choices_;   // prompt * n + index
  Json whole_;                    // see whole()
};

std::string ids_text(const std::vector<TokenId>& ids);  // JSON: "[1,2]"
double json_logprob(float logprob);                     // JSON has no infinity: OpenAI's -9999
// Log probabilities of the text's tokens: without the token that ended it, unless `keep_stop` makes it part of the
// text.
std::vector<TokenLogprobs> text_logprobs(const Event& event, bool keep_stop);
// Log probabilities as the chat API has them: an array of tokens, each with at most `top` alternatives.
Json logprobs_content(const Engine& engine, std::span<const TokenLogprobs> logprobs, int top, bool tokens_as_ids);
size_t count_characters(std::string_view utf8);
bool is_utf8(std::string_view bytes);
// vLLM's form of prompt_logprobs: one object of token ids per prompt token, null for the first.
Json prompt_logprobs_json(const Engine& engine, const std::vector<TokenLogprobs>& logprobs);

}  // namespace sluice::server
