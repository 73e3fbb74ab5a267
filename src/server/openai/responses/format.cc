// Prints blocks as the output items of a response.
#include "server/openai/responses/format.h"

#include <fmt/core.h>

#include <variant>

#include "server/openai/format.h"

namespace sluice::server {
namespace {

using Kind = AnswerBlock::Kind;

Json part(Kind kind, std::string_view text, Json logprobs) {
  if (kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", std::move(logprobs)}};
}

Json raw_messages(const Engine& engine, const std::vector<TokenId>& tokens, bool skip_special_tokens) {
  return Json::array({{{"type", "raw_message_tokens"},
                       {"message", engine.detokenize(tokens, skip_special_tokens)},
                       {"tokens", tokens}}});
}

void move_into(Json& to, Json& from) {
  for (Json& entry : from) to.push_back(std::move(entry));
  from.clear();
}

}  // namespace

ResponseFormat::ResponseFormat(const std::string& request_id, std::shared_ptr<const Engine> engine,
                               ResponseOptions options, Keeper keeper)
    : request_id_(request_id),
      id_("resp_" + request_id),
      engine_(std::move(engine)),
      options_(std::move(options)),
      keeper_(std::move(keeper)),
      blocks_("call_" + request_id.substr(0, 20), options_.stream ? this : nullptr) {}

std::string ResponseFormat::on_event(int, Event event) {
  usage_ = event.usage;
  if (sequence_ == 0) {
    send("response.created", {{"response", begun("in_progress")}});
    send("response.in_progress", {{"response", begun("in_progress")}});
  }
  if (options_.top_logprobs) {
    Json content = logprobs_content(*engine_, text_logprobs(event, options_.keep_stop), *options_.top_logprobs, false);
    move_into(waiting_, content);
  }
  if (options_.messages) {
    if (!event.prompt.empty()) prompt_ = std::move(event.prompt);
    tokens_.insert(tokens_.end(), event.tokens.begin(), event.tokens.end());
  }
  for (const Delta& delta : event.deltas) add(delta);
  if (event.finish) {
    finish_ = std::move(event.finish);
    piece_logprobs_ = std::exchange(waiting_, Json::array());
    keep_logprobs();
    blocks_.end();
  }
  return std::exchange(out_, {});
}

// A token may complete no character, or may begin what could be a call: its log probability waits for the text.
void ResponseFormat::add(const Delta& delta) {
  if (const auto* text = std::get_if<TextDelta>(&delta); text != nullptr && text->text.empty()) return;
  piece_logprobs_ = std::exchange(waiting_, Json::array());
  blocks_.add(delta);
  keep_logprobs();
}

// Adds those of the piece to those of its block, if that is a text.
void ResponseFormat::keep_logprobs() {
  const std::vector<AnswerBlock>& blocks = blocks_.blocks();
  logprobs_.resize(blocks.size(), Json::array());
  if (!blocks.empty() && blocks.back().kind == Kind::kText) move_into(logprobs_.back(), piece_logprobs_);
  piece_logprobs_ = Json::array();
}

void ResponseFormat::on_begin(size_t index, const AnswerBlock& block) {
  Json added = item(index, block, "in_progress");
  if (block.kind != Kind::kCall) added["content"] = Json::array();
  send("response.output_item.added", {{"output_index", index}, {"item", std::move(added)}});
  if (block.kind == Kind::kCall) return;
  send("response.content_part.added", {{"item_id", item_id(index, block)},
                                       {"output_index", index},
                                       {"content_index", 0},
                                       {"part", part(block.kind, "", Json::array())}});
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
      data["logprobs"] = piece_logprobs_;
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
    part["part"] = part_of(index, block);
    data["text"] = block.text;
    if (block.kind == Kind::kText) data["logprobs"] = logprobs_.at(index);
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
  send("response.failed", {{"response", failed(error)}});
  return std::exchange(out_, {});
}

HttpResponse ResponseFormat::error_response(const ApiError& error) {
  if (options_.on_failure) options_.on_failure(failed(error));
  return to_response(error, kOpenAi);
}

Json ResponseFormat::failed(const ApiError& error) const {
  Json out = response("failed", output());
  const std::string_view code = error.status == 503   ? "server_is_overloaded"
                                : error.status == 400 ? "invalid_prompt"
                                                      : "server_error";
  out["error"] = {{"code", code}, {"message", error.message}};
  return out;
}

std::string ResponseFormat::body() { return dump_json(finished()); }

std::string ResponseFormat::item_id(size_t index, const AnswerBlock& block) const {
  const std::string_view prefix = block.kind == Kind::kReasoning ? "rs" : block.kind == Kind::kCall ? "fc" : "msg";
  return fmt::format("{}_{}{:02x}", prefix, request_id_, index);
}

Json ResponseFormat::part_of(size_t index, const AnswerBlock& block) const {
  return part(block.kind, block.text, index < logprobs_.size() ? logprobs_[index] : Json::array());
}

Json ResponseFormat::item(size_t index, const AnswerBlock& block, std::string_view status) const {
  const std::string id = item_id(index, block);
  switch (block.kind) {
    case Kind::kReasoning:
      return {{"id", id},
              {"type", "reasoning"},
              {"summary", Json::array()},
              {"content", Json::array({part_of(index, block)})},
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
          {"content", Json::array({part_of(index, block)})}};
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
  if (!finished_.is_null()) return finished_;
  finished_ = response(cut_off() ? "incomplete" : "completed", output());
  if (options_.messages) {
    finished_["input_messages"] = raw_messages(*engine_, prompt_, /*skip_special_tokens=*/false);
    finished_["output_messages"] = raw_messages(*engine_, tokens_, options_.skip_special_tokens);
  }
  return finished_;
}

Json ResponseFormat::response(std::string_view status, Json output) const {
  Json out = {{"id", id_},        {"object", "response"},          {"created_at", created_},     {"status", status},
              {"error", nullptr}, {"incomplete_details", nullptr}, {"output", std::move(output)}};
  if (cut_off()) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
  out["usage"] = status == "in_progress" || status == "queued" ? Json(nullptr) : usage();
  out.update(options_.echo);
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
