// Prints blocks as Anthropic's clients expect them.
#include "server/anthropic/format.h"

#include <fmt/core.h>

#include "base/sha256.h"

namespace sluice::server {
namespace {

using Kind = AnswerBlock::Kind;

// Clients demand a signature and send it back. It is a digest, and nothing is decided by it.
std::string signature(const AnswerBlock& block) { return hex(sha256(block.text)); }

// The input of a call is an object. A call that was cut off by max_tokens has none that could be read.
Json input_of(const AnswerBlock& block) {
  try {
    return block.text.empty() ? Json::object() : parse_json(block.text);
  } catch (const Error&) {
    return Json::object();
  }
}

Json content_of(const AnswerBlock& block) {
  switch (block.kind) {
    case Kind::kReasoning:
      return {{"type", "thinking"}, {"thinking", block.text}, {"signature", signature(block)}};
    case Kind::kCall:
      return {{"type", "tool_use"}, {"id", block.id}, {"name", block.name}, {"input", input_of(block)}};
    case Kind::kText:
      break;
  }
  return {{"type", "text"}, {"text", block.text}};
}

}  // namespace

MessagesFormat::MessagesFormat(std::string request_id, std::string model, bool stream)
    : id_("msg_" + request_id),
      model_(std::move(model)),
      blocks_("toolu_" + request_id.substr(0, 20), stream ? this : nullptr) {}

std::string MessagesFormat::on_event(int, Event event) {
  usage_ = event.usage;
  if (!std::exchange(begun_, true)) {
    send("message_start", {{"type", "message_start"}, {"message", message(Json::array(), nullptr, nullptr)}});
    send("ping", {{"type", "ping"}});
  }
  for (const Delta& delta : event.deltas) blocks_.add(delta);
  if (event.finish) {
    blocks_.end();
    finish_ = std::move(event.finish);
  }
  return std::exchange(out_, {});
}

void MessagesFormat::on_begin(size_t index, const AnswerBlock& block) {
  Json content = content_of(block);
  if (block.kind == Kind::kReasoning) content["signature"] = "";
  send("content_block_start",
       {{"type", "content_block_start"}, {"index", index}, {"content_block", std::move(content)}});
}

void MessagesFormat::on_piece(size_t index, const AnswerBlock& block, std::string_view piece) {
  switch (block.kind) {
    case Kind::kReasoning:
      return send_delta(index, {{"type", "thinking_delta"}, {"thinking", piece}});
    case Kind::kCall:
      return send_delta(index, {{"type", "input_json_delta"}, {"partial_json", piece}});
    case Kind::kText:
      return send_delta(index, {{"type", "text_delta"}, {"text", piece}});
  }
}

void MessagesFormat::on_end(size_t index, const AnswerBlock& block) {
  if (block.kind == Kind::kReasoning) {
    send_delta(index, {{"type", "signature_delta"}, {"signature", signature(block)}});
  }
  send("content_block_stop", {{"type", "content_block_stop"}, {"index", index}});
}

void MessagesFormat::send_delta(size_t index, Json delta) {
  send("content_block_delta", {{"type", "content_block_delta"}, {"index", index}, {"delta", std::move(delta)}});
}

void MessagesFormat::send(std::string_view event, const Json& data) {
  out_ += fmt::format("event: {}\ndata: {}\n\n", event, dump_json(data));
}

std::string MessagesFormat::stream_end() {
  send("message_delta", {{"type", "message_delta"},
                         {"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}},
                         {"usage", usage()}});
  send("message_stop", {{"type", "message_stop"}});
  return std::exchange(out_, {});
}

std::string MessagesFormat::stream_error(const ApiError& error) {
  send("error", anthropic_error(error));
  return std::exchange(out_, {});
}

std::string MessagesFormat::body() {
  Json content = Json::array();
  for (const AnswerBlock& block : blocks_.blocks()) content.push_back(content_of(block));
  return dump_json(message(std::move(content), stop_reason(), stop_sequence()));
}

Json MessagesFormat::message(Json content, Json stop_reason, Json stop_sequence) const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model_},
          {"content", std::move(content)},
          {"stop_reason", std::move(stop_reason)},
          {"stop_sequence", std::move(stop_sequence)},
          {"usage", usage()}};
}

Json MessagesFormat::stop_reason() const {
  if (!finish_) return nullptr;
  if (finish_->reason == FinishReason::kLength) return "max_tokens";
  if (!finish_->stop_string.empty()) return "stop_sequence";
  return blocks_.calls_tools() ? "tool_use" : "end_turn";
}

Json MessagesFormat::stop_sequence() const {
  if (!finish_ || finish_->stop_string.empty()) return nullptr;
  return finish_->stop_string;
}

// Anthropic counts the tokens that were found in the cache apart from the others.
Json MessagesFormat::usage() const {
  return {{"input_tokens", usage_.prompt_tokens - usage_.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage_.cached_tokens},
          {"output_tokens", usage_.completion_tokens}};
}

}  // namespace sluice::server
