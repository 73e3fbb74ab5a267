// POST /v1/responses and /v1/responses/input_tokens.
#include "server/openai/responses/fields.h"
#include "server/openai/responses/format.h"
#include "server/openai/responses/input.h"
#include "server/rows.h"
#include "server/store/store.h"

namespace sluice::server::openai::create {
namespace {

using Type = Parameter::Type;

Json or_else(const Json& value, Json fallback) { return value.is_null() ? fallback : value; }

// The members of a response that repeat the request.
Json echo_of(Call& call) {
  const auto& fields = call.fields.of<ResponseFields>();
  const auto& sampling = call.fields.of<SamplingParams>();
  Json echo = {
      {"model", call.model.name},
      {"background", false},
      {"instructions", fields.instructions.empty() ? Json() : Json(fields.instructions)},
      {"max_output_tokens", nullptr},
      {"max_tool_calls", nullptr},
      {"metadata", or_else(fields.metadata, Json::object())},
      {"parallel_tool_calls", call.fields.of<ConversationFields>().parallel_tool_calls},
      {"previous_response_id", fields.previous_response_id.empty() ? Json() : Json(fields.previous_response_id)},
      {"reasoning", {{"effort", fields.effort}, {"summary", nullptr}}},
      {"service_tier", "default"},
      {"store", fields.store},
      {"temperature", sampling.temperature},
      {"text", {{"format", or_else(fields.text_format, {{"type", "text"}})}, {"verbosity", "medium"}}},
      {"tool_choice", or_else(fields.tool_choice, "auto")},
      {"tools", or_else(fields.tools, Json::array())},
      {"top_logprobs", 0},
      {"top_p", sampling.top_p},
      {"truncation", "disabled"}};
  if (call.fields.of<GenerationFields>().has_max_tokens) echo["max_output_tokens"] = *sampling.max_tokens;
  for (const auto* label : {"user", "safety_identifier", "prompt_cache_key"}) {
    const auto given = fields.labels.find(label);
    echo[label] = given != fields.labels.end() ? *given : Json();
  }
  return echo;
}

// The answer as the assistant's message of the conversation.
Json message_of(const AnswerBlocks& blocks) {
  Json message = {{"role", "assistant"}, {"content", blocks.text_of(AnswerBlock::Kind::kText)}};
  const std::string reasoning = blocks.text_of(AnswerBlock::Kind::kReasoning);
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  for (const AnswerBlock& block : blocks.blocks()) {
    if (block.kind != AnswerBlock::Kind::kCall) continue;
    message["tool_calls"].push_back(
        {{"id", block.id}, {"type", "function"}, {"function", {{"name", block.name}, {"arguments", block.text}}}});
  }
  return message;
}

// Instructions are not carried over to the next response.
Json without_instructions(const ResponseFields& fields, Json messages) {
  if (!fields.instructions.empty()) {
    Json& first = messages.at(0).at("content");
    const std::string text = first.get<std::string>();
    if (text.size() == fields.instructions.size()) {
      messages.erase(messages.begin());
    } else {
      first = text.substr(fields.instructions.size() + 2);  // a message of the system was joined to them
    }
  }
  return messages;
}

ResponseFormat::Keeper keeper(Call& call) {
  const auto& fields = call.fields.of<ResponseFields>();
  if (!fields.store) return {};
  const auto store = call.shared->of<Store>();
  store->expect_writable();
  StoredResponse kept{.id = {},
                      .tenant = call.tenant,
                      .body = {},
                      .input_items = dump_json(input_items(*fields.input)),
                      .conversation = {}};
  Json messages = without_instructions(fields, call.fields.of<ConversationFields>().messages);
  // Weak: the store owns what waits in it.
  return [weak = std::weak_ptr(store), kept = std::move(kept), messages = std::move(messages)](
             const Json& response, const AnswerBlocks& blocks, Kept done) mutable {
    kept.id = response.at("id").get<std::string>();
    kept.body = dump_json(response);
    messages.push_back(message_of(blocks));
    kept.conversation = dump_json(messages);
    put(weak, std::move(kept), std::move(done));
  };
}

void run(Call& call) {
  expect_generates(call);
  translate_response_request(call);
  GenerationJob job;
  job.chat = chat_request(call);
  job.chat->request.prompt_param = "input";
  job.stream = call.fields.of<GenerationFields>().stream;
  job.headers = call.warnings();
  job.format = std::make_unique<ResponseFormat>(call.request_id, echo_of(call), job.stream, keeper(call));
  call.generate(std::move(job));
}

void count(Call& call) {
  expect_generates(call);
  translate_response_request(call);
  const bool with_tools = !is_string(call.fields.of<ConversationFields>().tool_choice, "none");
  const size_t tokens = tokenize_chat(call, with_tools).size();
  call.send(
      {.body = dump_json({{"object", "response.input_tokens"}, {"input_tokens", tokens}}), .headers = call.warnings()});
}

constexpr Parameter kStream[] = {{.name = "stream",
                                  .type = Type::kBoolean,
                                  .fallback = "false",
                                  .help = "answer by server-sent events",
                                  .set = assign<&GenerationFields::stream>}};

const EndpointInfo create{
    .name = "responses",
    .dialect = &kOpenAi,
    .paths = {"/v1/responses", "/responses"},
    .flags = Route::kGenerates,
    .help = "OpenAI's Responses API",
    .parameters = {model_parameter(), response_parameters(), kStream, response_sampling_parameters()},
    .run = run};
const EndpointInfo input_tokens{.name = "response input_tokens",
                                .dialect = &kOpenAi,
                                .paths = {"/v1/responses/input_tokens"},
                                .help = "tokens of the input of a response",
                                .parameters = {model_parameter(), response_parameters()},
                                .run = count};
const Registry<EndpointInfo> registered_create{create}, registered_input_tokens{input_tokens};

}  // namespace
}  // namespace sluice::server::openai::create
