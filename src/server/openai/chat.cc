// /v1/chat/completions.
#include <fmt/core.h>

#include <algorithm>

#include "server/messages.h"
#include "server/openai/format.h"
#include "server/openai/openai.h"
#include "server/openai/reading.h"

namespace sluice::server {
namespace {

Json token_entry(const Engine& engine, const TokenLogprob& token) {
  const std::string bytes = engine.token_bytes(token.id);
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return {{"token", bytes}, {"logprob", json_logprob(token.logprob)}, {"bytes", std::move(list)}};
}

Json logprobs_content(const Engine& engine, const std::vector<TokenLogprobs>& logprobs, int top_logprobs) {
  Json content = Json::array();
  for (const TokenLogprobs& token : logprobs) {
    Json entry = token_entry(engine, token.token);
    Json top = Json::array();
    for (const TokenLogprob& other : token.top) {
      if (static_cast<int>(top.size()) < top_logprobs) top.push_back(token_entry(engine, other));
    }
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return content;
}

class ChatFormat final : public OpenAiFormat {
 public:
  ChatFormat(const Engine& engine, FormatOptions options) : OpenAiFormat(engine, std::move(options)) {}

 private:
  std::string add(int, int index, Choice& choice, Event& event) override {
    Json content;
    if (options_.logprobs) content = logprobs_content(engine_, text_logprobs(event), options_.top_logprobs);
    if (options_.stream) return add_to_stream(index, choice, event, content);
    choice.text += event.text;
    if (options_.logprobs) {
      if (choice.logprobs.is_null()) choice.logprobs = Json::array();
      for (Json& entry : content) choice.logprobs.push_back(std::move(entry));
    }
    return {};
  }

  std::string add_to_stream(int index, Choice& choice, const Event& event, const Json& content) {
    std::string out;
    if (!choice.begun) {
      choice.begun = true;
      out += chunk(choice_json(index, R"({"role":"assistant","content":""})", nullptr, std::nullopt), event.usage);
    }
    if (!event.text.empty() || (content.is_array() && !content.empty())) {
      out += chunk(choice_json(index, fmt::format(R"({{"content":{}}})", dump_json(event.text)), content, std::nullopt),
                   event.usage);
    }
    if (event.finish) out += chunk(choice_json(index, "{}", nullptr, event.finish), event.usage);
    return out;
  }

  static std::string choice_json(int index, std::string_view delta, const Json& content,
                                 const std::optional<Finish>& finish) {
    const std::string logprobs =
        content.is_null() ? "null" : fmt::format(R"({{"content":{},"refusal":null}})", dump_json(content));
    return fmt::format(R"({{"index":{},"delta":{},"logprobs":{},{}}})", index, delta, logprobs, finish_members(finish));
  }

  Json whole_choice(int index, Choice& choice) override {
    Json out = {{"index", index},
                {"message", {{"role", "assistant"}, {"content", std::move(choice.text)}, {"refusal", nullptr}}},
                {"logprobs", nullptr}};
    if (options_.logprobs) out["logprobs"] = {{"content", std::move(choice.logprobs)}, {"refusal", nullptr}};
    out.update(parse_json(fmt::format("{{{}}}", finish_members(choice.finish))));
    return out;
  }

  void extend_body(Json& body) override {
    if (!prompt_logprobs_[0].empty()) body["prompt_logprobs"] = prompt_logprobs_json(engine_, prompt_logprobs_[0]);
  }
};

}  // namespace

std::vector<TokenId> OpenAiApi::tokenize_chat(Reading& reading) const {
  RequestFields& fields = reading.fields;
  ChatPrompt chat;
  chat.messages = dump_json(template_messages(fields.messages, reading.unknown));
  const bool tools_allowed = fields.tool_choice.is_null() || fields.tool_choice != "none";
  if (fields.tools.is_array() && !fields.tools.empty()) {
    const Json& tools = check_tools(fields.tools, reading.unknown);
    if (tools_allowed) chat.tools = dump_json(tools);
  }
  if (fields.template_kwargs.is_object()) chat.template_kwargs = dump_json(fields.template_kwargs);
  chat.add_generation_prompt = fields.add_generation_prompt;
  const std::string text = engine_.render_chat(chat);
  // Templates write the special tokens themselves.
  return tokenize_text(text, fields.add_special_tokens.value_or(false), "messages");
}

GenerationJob OpenAiApi::chat_job(Reading reading) const {
  RequestFields& fields = reading.fields;
  if (!fields.messages.is_array()) throw missing_parameter("messages");
  if (fields.has_max_tokens && fields.has_max_completion_tokens) {
    throw ApiError{.message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
                   .param = "max_tokens",
                   .code = "invalid_parameter_combination"};
  }
  if (fields.top_logprobs > 0 && !fields.want_logprobs) {
    throw invalid_value("top_logprobs", "Invalid 'top_logprobs': it needs 'logprobs' to be true.");
  }
  if (fields.tool_choice.is_string() && fields.tools.is_null()) {
    throw invalid_value("tool_choice", "Invalid 'tool_choice': it needs 'tools'.");
  }
  const int top = std::max(fields.top_logprobs, 0);
  if (fields.want_logprobs) fields.sampling.logprobs = top;

  Request request = base_request(reading);
  request.prompt = tokenize_chat(reading);
  request.prompt_param = "messages";
  fit_context(fields, "messages", request);

  GenerationJob job;
  job.stream = fields.stream;
  job.headers = judge_unknown(reading);
  job.format =
      std::make_unique<ChatFormat>(engine_, FormatOptions{.id = "chatcmpl-" + reading.request_id,
                                                          .object = "chat.completion",
                                                          .chunk_object = "chat.completion.chunk",
                                                          .model = fields.model,
                                                          .fingerprint = fingerprint_,
                                                          .n = fields.n,
                                                          .stream = fields.stream,
                                                          .include_usage = fields.include_usage,
                                                          .continuous_usage = fields.continuous_usage,
                                                          .logprobs = fields.want_logprobs,
                                                          .top_logprobs = top,
                                                          .keep_stop = fields.sampling.include_stop_str_in_output});
  job.requests.push_back(std::move(request));
  return job;
}

}  // namespace sluice::server
