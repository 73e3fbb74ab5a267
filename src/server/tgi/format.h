// Answers of TGI's /generate and /generate_stream.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/tgi/dialect.h"

namespace sluice::server {

struct TgiAnswerOptions {
  std::string before;  // the prompt, if the text is to start with it
  std::optional<int64_t> seed;
  bool details = false;
  bool list = false;  // the answer is a list of one
};

class TgiFormat final : public AnswerFormat {
 public:
  TgiFormat(std::shared_ptr<const Engine> engine, TgiAnswerOptions options)
      : engine_(std::move(engine)), options_(std::move(options)) {}

  std::string on_event(int prompt, Event event) override;
  std::string stream_end() override;
  std::string stream_error(const ApiError& error) override;
  std::string body() override;
  HttpResponse error_response(const ApiError& error) override { return to_response(error, kTgi); }

 private:
  Json token(const TokenLogprobs& token, bool special) const;
  Json prompt_tokens(const std::vector<TokenLogprobs>& tokens) const;
  Json details() const;
  std::string last_event(Json token);

  const std::shared_ptr<const Engine> engine_;
  const TgiAnswerOptions options_;
  std::string text_;
  Json tokens_ = Json::array(), prefill_ = Json::array();
  int index_ = 0;       // tokens so far
  bool ended_ = false;  // the stream has its last event
  std::optional<Finish> finish_;
  Usage usage_;
};

}  // namespace sluice::server
