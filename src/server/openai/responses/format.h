// Answers of OpenAI's Responses API, whole and as typed events.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_blocks.h"
#include "server/generation.h"
#include "server/openai/dialect.h"

namespace sluice::server {

struct ResponseOptions {
  Json echo;  // the members of the response that repeat the request
  bool stream = false;
  std::optional<int> top_logprobs;   // alternatives of each token; none: log probabilities are not reported
  bool keep_stop = false;            // the token that ended the text is part of it
  bool skip_special_tokens = false;  // in the texts of `messages`
  bool messages = false;             // vLLM's members with the prompt and the answer as tokens
  // Gets the response when it fails before anything was sent; may be empty.
  std::function<void(const Json& response)> on_failure = {};
};

class ResponseFormat final : public AnswerFormat, private AnswerBlocks::Observer {
 public:
  // Keeps the finished response, and calls `done` as AnswerFormat::keep says.
  using Keeper = std::function<void(const Json& response, const AnswerBlocks& blocks, Kept done)>;
  // `keeper` is empty if the response is not kept.
  ResponseFormat(const std::string& request_id, std::shared_ptr<const Engine> engine, ResponseOptions options,
                 Keeper keeper);

  std::string on_event(int prompt, Event event) override;
  bool keep(Kept done) override;
  std::string stream_end() override;
  std::string stream_error(const ApiError& error) override;
  std::string body() override;
  HttpResponse error_response(const ApiError& error) override;

  const std::string& id() const { return id_; }
  // The response before the first event: "queued" or "in_progress".
  Json begun(std::string_view status) const { return response(status, Json::array()); }

 private:
  void on_begin(size_t index, const AnswerBlock& block) override;
  void on_piece(size_t index, const AnswerBlock& block, std::string_view piece) override;
  void on_end(size_t index, const AnswerBlock& block) override;
  void send(std::string_view type, Json data);
  void add(const Delta& delta);
  void keep_logprobs();
  Json part_of(size_t index, const AnswerBlock& block) const;
  std::string item_id(size_t index, const AnswerBlock& block) const;
  Json item(size_t index, const AnswerBlock& block, std::string_view status) const;
  Json output() const;
  Json response(std::string_view status, Json output) const;
  const Json& finished();
  Json failed(const ApiError& error) const;
  bool cut_off() const { return finish_ && finish_->reason == FinishReason::kLength; }
  Json usage() const;

  const std::string request_id_, id_;
  const std::shared_ptr<const Engine> engine_;
  const ResponseOptions options_;
  const std::time_t created_ = std::time(nullptr);
  const Keeper keeper_;
  AnswerBlocks blocks_;
  Json waiting_ = Json::array();          // log probabilities of tokens that gave no text so far
  Json piece_logprobs_ = Json::array();   // those of the text that is being added
  std::vector<Json> logprobs_;            // by block
  std::vector<TokenId> prompt_, tokens_;  // with `messages`
  int sequence_ = 0;                      // number of the next event
  std::string out_;                       // what the stream sends for the current event
  std::optional<Finish> finish_;
  Usage usage_;
  Json finished_;  // the response when nothing follows
};

}  // namespace sluice::server
