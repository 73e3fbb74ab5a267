// Answers of OpenAI's Responses API, whole and as typed events.
#pragma once

#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "server/answer_blocks.h"
#include "server/generation.h"
#include "server/openai/dialect.h"

namespace sluice::server {

class ResponseFormat final : public AnswerFormat, private AnswerBlocks::Observer {
 public:
  // Keeps the finished response, and calls `done` as AnswerFormat::keep says.
  using Keeper = std::function<void(const Json& response, const AnswerBlocks& blocks, Kept done)>;
  // `echo`: the members of the response that repeat the request. `keeper` is empty if the response is not kept.
  ResponseFormat(const std::string& request_id, Json echo, bool stream, Keeper keeper);

  std::string on_event(int prompt, Event event) override;
  bool keep(Kept done) override;
  std::string stream_end() override;
  std::string stream_error(const ApiError& error) override;
  std::string body() override;
  HttpResponse error_response(const ApiError& error) override { return to_response(error, kOpenAi); }

 private:
  void on_begin(size_t index, const AnswerBlock& block) override;
  void on_piece(size_t index, const AnswerBlock& block, std::string_view piece) override;
  void on_end(size_t index, const AnswerBlock& block) override;
  void send(std::string_view type, Json data);
  std::string item_id(size_t index, const AnswerBlock& block) const;
  Json item(size_t index, const AnswerBlock& block, std::string_view status) const;
  Json output() const;
  Json response(std::string_view status, Json output) const;
  const Json& finished();
  bool cut_off() const { return finish_ && finish_->reason == FinishReason::kLength; }
  Json usage() const;

  const std::string request_id_, id_;
  const Json echo_;
  const std::time_t created_ = std::time(nullptr);
  const Keeper keeper_;
  AnswerBlocks blocks_;
  int sequence_ = 0;  // number of the next event
  std::string out_;   // what the stream sends for the current event
  std::optional<Finish> finish_;
  Usage usage_;
  Json finished_;  // the response when nothing follows
};

}  // namespace sluice::server
