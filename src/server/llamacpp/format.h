// Answers of llama.cpp's /completion: one, or a list of them to several prompts.
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
  std::vector<std::string> prompts;  // the answers repeat them
  Json settings;                     // and these
  bool stream = false;
  bool tokens = false;  // report the ids
};

class LlamaFormat final : public AnswerFormat {
 public:
  explicit LlamaFormat(LlamaAnswerOptions options) : options_(std::move(options)), answers_(options_.prompts.size()) {}

  std::string on_event(int prompt, Event event) override;
  std::string stream_end() override { return {}; }
  std::string stream_error(const ApiError& error) override;
  std::string body() override;
  HttpResponse error_response(const ApiError& error) override { return to_response(error, kLlamaCpp); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Answer {
    std::optional<Clock::time_point> first;  // when the first token came
    Clock::time_point end;                   // when the last one came
    std::string text;
    std::vector<TokenId> tokens;
    Finish finish;
    Usage usage;
  };

  Json piece(size_t index, std::string_view text, const std::vector<TokenId>& tokens, bool stop) const;
  Json finished(size_t index, std::string_view text, const std::vector<TokenId>& tokens) const;
  Json timings(const Answer& answer) const;

  const LlamaAnswerOptions options_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Answer> answers_;  // by prompt
};

}  // namespace sluice::server
