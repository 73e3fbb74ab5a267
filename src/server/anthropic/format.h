// Answers of Anthropic's Messages API, whole and as server-sent events.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/answer_blocks.h"
#include "server/anthropic/dialect.h"
#include "server/generation.h"

namespace sluice::server {

class MessagesFormat final : public AnswerFormat, private AnswerBlocks::Observer {
 public:
  MessagesFormat(std::string request_id, std::string model, bool stream);

  std::string on_event(int prompt, Event event) override;
  std::string stream_end() override;
  std::string stream_error(const ApiError& error) override;
  std::string body() override;
  HttpResponse error_response(const ApiError& error) override { return to_response(error, kAnthropic); }

 private:
  void on_begin(size_t index, const AnswerBlock& block) override;
  void on_piece(size_t index, const AnswerBlock& block, std::string_view piece) override;
  void on_end(size_t index, const AnswerBlock& block) override;
  void send(std::string_view event, const Json& data);
  void send_delta(size_t index, Json delta);
  Json message(Json content, Json stop_reason, Json stop_sequence) const;
  Json stop_reason() const;
  Json stop_sequence() const;
  Json usage() const;

  const std::string id_, model_;
  AnswerBlocks blocks_;
  bool begun_ = false;
  std::string out_;  // what the stream sends for the current event
  std::optional<Finish> finish_;
  Usage usage_;
};

}  // namespace sluice::server
