// Prints blocks as the output items of a response.
#include "server/openai/responses/format.h"

#include <fmt/core.h>

namespace sluice::server {
namespace {

using Kind = AnswerBlock::Kind;

Json text_part(std::string_view text) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

Json part_of(const AnswerBlock& block, std::string_view text) {
  if (block.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return text_part(text);
}

}  // namespace

ResponseFormat::ResponseFormat(const std::string& request_id, Json echo, bool stream, Keeper keeper)
    : request_id_(request_id),
      id_("resp_" + request_id),
      echo_(std::move(echo)),
      keeper_(std::move(keeper)),
      blocks_("call_" + request_id.substr(0, 20), stream ? this : nullptr) {}

std::string ResponseFormat::on_event(int, Event event) {
  usage_ = event.usage;
  if (sequence_ == 0) {
    const Json begun = response("in_progress", Json::array());
    send("response.created", {{"response", begun}});
    send("response.in_progress", {{"response", begun}});
  }
  for (const Delta& delta : event.deltas) blocks_.add(delta);
  if (event.finish) {
    finish_ = std::move(event.finish);
    blocks_.end();
  }
  return std::exchange(out_, {});
}

void ResponseFormat::on_begin(size_t index, const AnswerBlock& block) {
  Json added = item(index, block, "in_progress");
  if (block.kind != Kind::kCall) added["content"] = Json::array();
  send("response.output_item.added", {{"output_index", index}, {"item", std::move(added)}});
  if (block.kind == Kind::kCall) return;
  send("response.content_part.added", {{"item_id", item_id(index, block)},
                                       {"output_index", index},
                                       {"content_index", 0},
                                       {"part", part_of(block, "")}});
}

void ResponseFormat::on_piece(size_t index, const AnswerBlock& block, std::string_view piece) {
  Json data = {{"item_id", item_id(index, block)}, {"output_index", index}};
  if (block.kind != Kind::kCall) data["content_index"] = 0;
  data["delta"] = piece;
  switch (block.kind) {
    case Kind::kReasoning:
      return send("response.reasoning_text.delta", std::move(data));
    case Kind::kCall:
      return send("response.function_call_arguments.delta", std::move(data));
    case Kind::kText:
      data["logprobs"] = Json::array();
      return send("response.output_text.delta", std::move(data));
  }
}

void ResponseFormat::on_end(size_t index, const AnswerBlock& block) {
  Json data = {{"item_id", item_id(index, block)}, {"output_index", index}};
  if (block.kind == Kind::kCall) {
    data["name"] = block.name;
    data["arguments"] = block.text;
    send("response.function_call_arguments.done", std::move(data));
  } else {
    data["content_index"] = 0;
    Json part = data;
    part["part"] = part_of(block, block.text);
    data["text"] = block.text;
    if (block.kind == Kind::kText) data["logprobs"] = Json::array();
    send(block.kind == Kind::kText ? "response.output_text.done" : "response.reasoning_text.done", std::move(data));
    send("response.content_part.done", std::move(part));
  }
  const bool cut = cut_off() && index + 1 == blocks_.blocks().size();
  send("response.output_item.done",
       {{"output_index", index}, {"item", item(index, block, cut ? "incomplete" : "completed")}});
}

void ResponseFormat::send(std::string_view type, Json data) {
  Json event = {{"type", type}, {"sequence_number", sequence_++}};
  event.update(data);
  out_ += fmt::format("event: {}\ndata: {}\n\n", type, dump_json(event));
}

bool ResponseFormat::keep(Kept done) {
  if (!keeper_) return false;
  keeper_(finished(), blocks_, std::move(done));
  return true;
}

std::string ResponseFormat::stream_end() {
  send(cut_off() ? "response.incomplete" : "response.completed", {{"response", finished()}});
  return std::exchange(out_, {});
}

std::string ResponseFormat::stream_error(const ApiError& error) {
  Json failed = response("failed", output());
  failed["error"] = {{"code", error.status == 503 ? "server_is_overloaded" : "server_error"},
                     {"message", error.message}};
  send("response.failed", {{"response", std::move(failed)}});
  return std::exchange(out_, {});
}

std::string ResponseFormat::body() { return dump_json(finished()); }

std::string ResponseFormat::item_id(size_t index, const AnswerBlock& block) const {
  const std::string_view prefix = block.kind == Kind::kReasoning ? "rs" : block.kind == Kind::kCall ? "fc" : "msg";
  return fmt::format("{}_{}{:02x}", prefix, request_id_, index);
}

Json ResponseFormat::item(size_t index, const AnswerBlock& block, std::string_view status) const {
  const std::string id = item_id(index, block);
  switch (block.kind) {
    case Kind::kReasoning:
      return {{"id", id},
              {"type", "reasoning"},
              {"summary", Json::array()},
              {"content", Json::array({part_of(block, block.text)})},
              {"encrypted_content", nullptr},
              {"status", status}};
    case Kind::kCall:
      return {{"id", id},           {"type", "function_call"}, {"status", status}, {"call_id", block.id},
              {"name", block.name}, {"arguments", block.text}};
    case Kind::kText:
      break;
  }
  return {{"id", id},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", Json::array({text_part(block.text)})}};
}

Json ResponseFormat::output() const {
  Json items = Json::array();
  const std::vector<AnswerBlock>& blocks = blocks_.blocks();
  for (size_t i = 0; i < blocks.size(); ++i) {
    items.push_back(item(i, blocks[i], cut_off() && i + 1 == blocks.size() ? "incomplete" : "completed"));
  }
  return items;
}

const Json& ResponseFormat::finished() {
  if (finished_.is_null()) finished_ = response(cut_off() ? "incomplete" : "completed", output());
  return finished_;
}

Json ResponseFormat::response(std::string_view status, Json output) const {
  Json out = {{"id", id_},        {"object", "response"},          {"created_at", created_},     {"status", status},
              {"error", nullptr}, {"incomplete_details", nullptr}, {"output", std::move(output)}};
  if (cut_off()) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
  out["usage"] = status == "in_progress" ? Json(nullptr) : usage();
  out.update(echo_);
  return out;
}

Json ResponseFormat::usage() const {
  return {{"input_tokens", usage_.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage_.cached_tokens}}},
          {"output_tokens", usage_.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage_.reasoning_tokens}}},
          {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens}};
}

}  // namespace sluice::server
