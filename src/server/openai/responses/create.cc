// POST /v1/responses and /v1/responses/input_tokens.
#include "server/openai/responses/background.h"
#include "server/openai/responses/fields.h"
#include "server/openai/responses/format.h"
#include "server/openai/responses/input.h"
#include "server/openai/shared_fields.h"
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
      {"background", fields.background},
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
      {"top_logprobs", fields.top_logprobs},
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

// What is stored of a response, still without its answer.
StoredResponse stored(Call& call) {
  return {.id = "resp_" + call.request_id,
          .tenant = call.tenant,
          .body = {},
          .input_items = dump_json(input_items(*call.fields.of<ResponseFields>().input)),
          .conversation = {}};
}

ResponseFormat::Keeper keeper(Call& call) {
  const auto& fields = call.fields.of<ResponseFields>();
  if (!fields.store) return {};
  const auto store = call.shared->of<Store>();
  store->expect_writable();
  StoredResponse kept = stored(call);
  Json messages = without_instructions(fields, call.fields.of<ConversationFields>().messages);
  // Weak: the store owns what waits in it.
  return [weak = std::weak_ptr(store), kept = std::move(kept), messages = std::move(messages)](
             const Json& response, const AnswerBlocks& blocks, Kept done) mutable {
    kept.body = dump_json(response);
    messages.push_back(message_of(blocks));
    kept.conversation = dump_json(messages);
    put(weak, std::move(kept), std::move(done));
  };
}

void check_background(Call& call) {
  if (!call.fields.of<ResponseFields>().background) return;
  if (!call.fields.of<ResponseFields>().store) {
    throw invalid_value("background", "Invalid 'background': it needs 'store' to be true.");
  }
  if (call.fields.of<GenerationFields>().stream) {
    throw unsupported_parameter("stream", "is not supported with 'background': fetch the response when it is complete");
  }
}

// Goes on without the client, who gets the response as it is at its beginning. Whoever cancels it stores what becomes
// of it.
void run_in_background(Call& call, GenerationJob job, ResponseOptions options) {
  const auto reply = std::make_shared<BackgroundReply>(call.reply->executor());
  const auto store = call.shared->of<Store>();
  ResponseFormat::Keeper keep = keeper(call);
  options.on_failure = [reply, weak = std::weak_ptr(store), kept = stored(call)](const Json& response) {
    if (reply->cancelled()) return;
    StoredResponse failed = kept;
    failed.body = dump_json(response);
    put(weak, std::move(failed), [reply](const ApiError*) {});  // it runs until this is written
  };
  auto format = std::make_unique<ResponseFormat>(
      call.request_id, call.model.engine, std::move(options),
      [reply, keep = std::move(keep)](const Json& response, const AnswerBlocks& blocks, Kept done) {
        if (reply->cancelled()) return done(nullptr);
        keep(response, blocks, std::move(done));
      });
  call.shared->of<BackgroundResponses>()->add(format->id(), reply);
  StoredResponse begun = stored(call);
  begun.body = dump_json(format->begun("in_progress"));
  const auto client = LateAnswer::start(std::exchange(call.reply, reply), call.running);
  store->put(begun, [client, body = dump_json(format->begun("queued")), headers = job.headers](const ApiError* error) {
    error != nullptr ? client->abort(*error) : client->send({.body = body, .headers = headers});
  });
  job.format = std::move(format);
  call.generate(std::move(job));
}

void run(Call& call) {
  expect_generates(call);
  check_background(call);
  translate_response_request(call);
  const auto& fields = call.fields.of<ResponseFields>();
  if (fields.logprobs) call.fields.of<SamplingParams>().logprobs = fields.top_logprobs;
  call.fields.of<GenerationFields>().return_token_ids = fields.messages;
  GenerationJob job;
  job.chat = chat_request(call);
  job.chat->request.prompt_param = "input";
  job.stream = call.fields.of<GenerationFields>().stream;
  job.headers = call.warnings();
  const SamplingParams& sampling = job.chat->request.sampling;
  ResponseOptions options{.echo = echo_of(call),
                          .stream = job.stream,
                          .top_logprobs = sampling.logprobs,
                          .keep_stop = sampling.include_stop_str_in_output,
                          .skip_special_tokens = sampling.skip_special_tokens,
                          .messages = fields.messages};
  if (fields.background) return run_in_background(call, std::move(job), std::move(options));
  job.format = std::make_unique<ResponseFormat>(call.request_id, call.model.engine, std::move(options), keeper(call));
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

const EndpointInfo create{.name = "responses",
                          .dialect = &kOpenAi,
                          .paths = {"/v1/responses", "/responses"},
                          .flags = Route::kGenerates,
                          .help = "OpenAI's Responses API",
                          .parameters = {model_parameter(), response_parameters(), kStream,
                                         response_sampling_parameters(), choice_parameters()},
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
