// A call is sent when it is complete, because its arguments are an object.
#include "server/ollama/format.h"

#include <algorithm>
#include <iterator>

#include "server/openai/format.h"

namespace sluice::server {
namespace {

int64_t nanoseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// A call that was cut off has no arguments that could be read.
Json call_json(const AnswerBlock& block) {
  Json arguments = Json::object();
  try {
    if (!block.text.empty()) arguments = parse_json(block.text);
  } catch (const Error&) {
  }
  return {{"id", block.id}, {"function", {{"name", block.name}, {"arguments", std::move(arguments)}}}};
}

}  // namespace

OllamaFormat::OllamaFormat(Kind kind, Call& call)
    : kind_(kind),
      model_(call.model.name),
      engine_(call.fields.of<LogprobFields>().wanted ? call.model.engine : nullptr),
      top_logprobs_(call.fields.of<LogprobFields>().top),
      blocks_("call_" + call.request_id.substr(0, 20), call.fields.of<OllamaFields>().stream ? this : nullptr) {}

std::string OllamaFormat::on_event(int, Event event) {
  if (!first_) first_ = Clock::now();
  usage_ = event.usage;
  if (engine_ != nullptr) std::ranges::move(text_logprobs(event, /*keep_stop=*/false), std::back_inserter(logprobs_));
  for (const Delta& delta : event.deltas) blocks_.add(delta);
  if (event.finish) {
    blocks_.end();
    finish_ = std::move(event.finish);
  }
  return std::exchange(out_, {});
}

void OllamaFormat::on_piece(size_t, const AnswerBlock& block, std::string_view piece) {
  if (block.kind == AnswerBlock::Kind::kCall) return;
  const bool thinks = block.kind == AnswerBlock::Kind::kReasoning;
  const std::string text(piece);
  out_ += line(object(thinks ? "" : text, thinks ? text : "", Json(), false));
}

void OllamaFormat::on_end(size_t, const AnswerBlock& block) {
  if (block.kind != AnswerBlock::Kind::kCall) return;
  out_ += line(object("", "", Json::array({call_json(block)}), false));
}

std::string OllamaFormat::stream_end() {
  Json last = object("", "", Json(), true);
  add_end(last);
  return line(std::move(last));
}

std::string OllamaFormat::stream_error(const ApiError& error) { return kOllama.error_body(error) + "\n"; }

std::string OllamaFormat::body() {
  Json calls;
  for (const AnswerBlock& block : blocks_.blocks()) {
    if (block.kind == AnswerBlock::Kind::kCall) calls.push_back(call_json(block));
  }
  Json whole = object(blocks_.text_of(AnswerBlock::Kind::kText), blocks_.text_of(AnswerBlock::Kind::kReasoning),
                      std::move(calls), true);
  add_end(whole);
  add_logprobs(whole);
  return dump_json(whole);
}

Json OllamaFormat::object(std::string text, std::string thinking, Json calls, bool done) const {
  Json out = {{"model", model_}, {"created_at", rfc3339_now()}};
  if (kind_ == Kind::kGenerate) {
    out["response"] = std::move(text);
    if (!thinking.empty()) out["thinking"] = std::move(thinking);
  } else {
    Json& message = out["message"];
    message = {{"role", "assistant"}, {"content", std::move(text)}};
    if (!thinking.empty()) message["thinking"] = std::move(thinking);
    if (!calls.is_null()) message["tool_calls"] = std::move(calls);
  }
  out["done"] = done;
  return out;
}

void OllamaFormat::add_end(Json& object) const {
  const Clock::time_point end = Clock::now(), first = first_.value_or(end);
  object["done_reason"] = finish_ && finish_->reason == FinishReason::kLength ? "length" : "stop";
  object["total_duration"] = nanoseconds(end - start_);
  object["load_duration"] = 0;
  object["prompt_eval_count"] = usage_.prompt_tokens;
  object["prompt_eval_duration"] = nanoseconds(first - start_);
  object["eval_count"] = usage_.completion_tokens;
  object["eval_duration"] = nanoseconds(end - first);
}

// A token that ends within a character has no text yet, and a call none before its end.
void OllamaFormat::add_logprobs(Json& object) {
  if (engine_ == nullptr || logprobs_.empty()) return;
  object["logprobs"] = logprobs_content(*engine_, logprobs_, top_logprobs_, /*tokens_as_ids=*/false);
  logprobs_.clear();
}

std::string OllamaFormat::line(Json object) {
  add_logprobs(object);
  return dump_json(object) + "\n";
}

}  // namespace sluice::server
