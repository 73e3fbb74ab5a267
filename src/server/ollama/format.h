// Answers of /api/chat and /api/generate: lines of JSON, or one object.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_blocks.h"
#include "server/generation.h"
#include "server/ollama/dialect.h"
#include "server/ollama/options.h"

namespace sluice::server {

class OllamaFormat final : public AnswerFormat, private AnswerBlocks::Observer {
 public:
  enum class Kind { kChat, kGenerate };
  OllamaFormat(Kind kind, Call& call);

  std::string on_event(int prompt, Event event) override;
  std::string stream_end() override;
  std::string stream_error(const ApiError& error) override;
  std::string_view stream_type() const override { return "application/x-ndjson"; }
  std::string body() override;
  HttpResponse error_response(const ApiError& error) override { return to_response(error, kOllama); }

 private:
  using Clock = std::chrono::steady_clock;

  void on_begin(size_t, const AnswerBlock&) override {}
  void on_piece(size_t index, const AnswerBlock& block, std::string_view piece) override;
  void on_end(size_t index, const AnswerBlock& block) override;
  // The object with these parts of the answer; those that are empty are left out, but the text.
  Json object(std::string text, std::string thinking, Json calls, bool done) const;
  void add_end(Json& object) const;
  void add_logprobs(Json& object);
  std::string line(Json object);  // with the log probabilities that no line has had

  const Kind kind_;
  const std::string model_;
  const std::shared_ptr<const Engine> engine_;  // null: no log probabilities
  const int top_logprobs_;
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> first_;  // when the first token came
  AnswerBlocks blocks_;
  std::string out_;                      // what the stream sends for the current event
  std::vector<TokenLogprobs> logprobs_;  // that no object has had
  std::optional<Finish> finish_;
  Usage usage_;
};

}  // namespace sluice::server
