// Answers of llama.cpp's /completion.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation.h"
#include "server/llamacpp/dialect.h"

namespace sluice::server {

struct LlamaAnswerOptions {
  std::string model;
  std::string prompt;  // the answer repeats it
  Json settings;       // the answer repeats them
  bool stream = false;
  bool tokens = false;  // report the ids
};

class LlamaFormat final : public AnswerFormat {
 public:
  explicit LlamaFormat(LlamaAnswerOptions options) : options_(std::move(options)) {}

  std::string on_event(int prompt, Event event) override;
  std::string stream_end() override;
  std::string stream_error(const ApiError& error) override;
  std::string body() override;
  HttpResponse error_response(const ApiError& error) override { return to_response(error, kLlamaCpp); }

 private:
  using Clock = std::chrono::steady_clock;

  Json piece(std::string_view text, const std::vector<TokenId>& tokens, bool stop) const;
  Json finished(std::string_view text, const std::vector<TokenId>& tokens) const;
  Json timings() const;

  const LlamaAnswerOptions options_;
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> first_;  // when the first token came
  std::string text_;
  std::vector<TokenId> tokens_;
  std::optional<Finish> finish_;
  Usage usage_;
};

}  // namespace sluice::server
