// Answers of llama.cpp's /completion: one, or a list of them to several prompts.
#pragma once

#include <chrono>
#include <memory>
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
  int top_tokens = 0;   // > 0: log-probabilities of each token, and of as many of the likeliest ones
  bool times_per_token = false;
  std::vector<std::string> fields{};  // of an answer: "a", or "a/b" for the field b of the object a; empty: all
};

class LlamaFormat final : public AnswerFormat {
 public:
  LlamaFormat(std::shared_ptr<const Engine> engine, LlamaAnswerOptions options)
      : engine_(std::move(engine)), options_(std::move(options)), answers_(options_.prompts.size()) {}

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
    std::vector<TokenLogprobs> logprobs;
    Finish finish;
    Usage usage;
  };

  // What comes with a part of an answer, or with all of it.
  struct Part {
    std::string_view text;
    const std::vector<TokenId>& tokens;
    const std::vector<TokenLogprobs>& logprobs;
  };
  Json piece(size_t index, const Part& part, bool stop) const;
  Json finished(size_t index, const Part& part) const;
  Json whole(size_t index) const;
  Json probabilities(const std::vector<TokenLogprobs>& logprobs) const;
  std::string shown(Json answer) const;
  Json timings(const Answer& answer) const;

  const std::shared_ptr<const Engine> engine_;
  const LlamaAnswerOptions options_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Answer> answers_;  // by prompt
};

}  // namespace sluice::server
