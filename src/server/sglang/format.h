// Answers of SGLang's /generate.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/sglang/dialect.h"

namespace sluice::server {

// One prompt of a request.
struct SglangPrompt {
  std::string id{};
  int n = 1;
  bool logprobs = false;
  int top = 0;                    // alternatives per token
  std::optional<int> start{};     // the first token of the prompt whose log probabilities are wanted
  bool scores_only = false;       // nothing is to be generated
  std::vector<TokenId> tokens{};  // of the prompt, with `start`
};

struct SglangAnswerOptions {
  std::vector<SglangPrompt> prompts{};
  bool is_list = false;  // of answers, also if there is one
  bool stream = false;
  bool token_texts = false;  // log probabilities come with the texts of their tokens
};

class SglangFormat final : public AnswerFormat {
 public:
  SglangFormat(std::shared_ptr<const Engine> engine, SglangAnswerOptions options);

  std::string on_event(int prompt, Event event) override;
  std::string stream_end() override { return "data: [DONE]\n\n"; }
  std::string stream_error(const ApiError& error) override;
  std::string body() override;
  HttpResponse error_response(const ApiError& error) override { return to_response(error, kSglang); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Answer {
    size_t prompt = 0;
    std::string text{};
    std::vector<TokenId> tokens{};
    Json token_logprobs = Json::array(), top_logprobs = Json::array();
    std::optional<Finish> finish{};
    Usage usage{};
    double seconds = 0;
  };

  Json entry(const TokenLogprob& token) const;
  Json top_entries(const TokenLogprobs& token, int most) const;
  Json answer_json(const Answer& answer) const;
  void add_logprobs(const Answer& answer, Json& meta) const;

  const std::shared_ptr<const Engine> engine_;
  const SglangAnswerOptions options_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Answer> answers_;
  std::vector<size_t> first_;                                // of each prompt among the answers
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs_;  // by prompt
};

}  // namespace sluice::server
