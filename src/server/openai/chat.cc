// /v1/chat/completions.
#include <fmt/core.h>

#include <array>
#include <utility>
#include <variant>

#include "server/messages.h"
#include "server/openai/chat_keeper.h"
#include "server/openai/format.h"
#include "server/openai/grammar_fields.h"
#include "server/openai/legacy_functions.h"
#include "server/openai/metadata.h"
#include "server/openai/module_fields.h"
#include "server/openai/reasoning_fields.h"
#include "server/openai/requests.h"
#include "server/openai/shared_fields.h"
#include "server/openai/transfer_fields.h"
#include "server/rows.h"
#include "server/tool_rows.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

struct ChatFields {
  bool has_max_completion_tokens = false;
  bool echo = false;
};

// How deltas become JSON.
struct ChatOptions {
  std::string echo;               // what the answer begins with
  bool legacy_functions = false;  // a call is the message's function_call
  bool include_reasoning = true;
  ChatKeeper keeper;  // empty: the answer is not kept
};

// A streamed delta, as the JSON text of "delta".
struct DeltaText {
  const bool legacy_functions;
  // Clients of models that think read delta.reasoning_content, whether it has a text or not.
  const bool tells_reasoning;

  std::string operator()(const TextDelta& d) const {
    return fmt::format(R"({{"content":{}{}}})", dump_json(d.text), none());
  }
  std::string begin() const { return fmt::format(R"({{"role":"assistant","content":""{}}})", none()); }
  std::string end() const { return tells_reasoning ? R"({"reasoning_content":null})" : "{}"; }
  // Clients know one of two names.
  std::string operator()(const ReasoningDelta& d) const {
    const std::string text = dump_json(d.text);
    return fmt::format(R"({{"reasoning":{},"reasoning_content":{}}})", text, text);
  }
  std::string operator()(const ToolCallBegin& d) const {
    if (legacy_functions) return with_reasoning({{"function_call", {{"name", d.name}, {"arguments", ""}}}});
    return call(
        {{"index", d.index}, {"id", d.id}, {"type", "function"}, {"function", {{"name", d.name}, {"arguments", ""}}}});
  }
  std::string operator()(const ToolCallArguments& d) const {
    if (legacy_functions) return with_reasoning({{"function_call", {{"arguments", d.json}}}});
    return call({{"index", d.index}, {"function", {{"arguments", d.json}}}});
  }
  std::string call(const Json& call) const { return with_reasoning({{"tool_calls", Json::array({call})}}); }
  std::string with_reasoning(Json delta) const {
    if (tells_reasoning) delta["reasoning_content"] = nullptr;
    return dump_json(delta);
  }
  std::string_view none() const { return tells_reasoning ? R"(,"reasoning_content":null)" : ""; }
};

// The message of a whole answer, collected from deltas.
struct Message {
  std::string text, reasoning;
  std::vector<std::pair<ToolCallBegin, std::string>> calls;  // with the JSON text of their arguments

  void operator()(const TextDelta& d) { text += d.text; }
  void operator()(const ReasoningDelta& d) { reasoning += d.text; }
  void operator()(const ToolCallBegin& d) { calls.emplace_back(d, ""); }
  void operator()(const ToolCallArguments& d) { calls.at(static_cast<size_t>(d.index)).second += d.json; }

  Json json(bool legacy_functions, bool tells_reasoning) const {
    Json out = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
    if (text.empty() && !calls.empty()) out["content"] = nullptr;
    if (tells_reasoning) out["reasoning"] = out["reasoning_content"] = nullptr;
    if (!reasoning.empty()) out["reasoning"] = out["reasoning_content"] = reasoning;
    if (legacy_functions && !calls.empty()) {
      out["function_call"] = {{"name", calls[0].first.name}, {"arguments", calls[0].second}};
      return out;
    }
    for (const auto& [begin, arguments] : calls) {
      out["tool_calls"].push_back(
          {{"id", begin.id}, {"type", "function"}, {"function", {{"name", begin.name}, {"arguments", arguments}}}});
    }
    return out;
  }
};

class ChatFormat final : public OpenAiFormat {
 public:
  ChatFormat(std::shared_ptr<const Engine> engine, FormatOptions options, ChatOptions more)
      : OpenAiFormat(std::move(engine), std::move(options)),
        more_(std::move(more)),
        deltas_{more_.legacy_functions, options_.thinks && more_.include_reasoning},
        messages_(static_cast<size_t>(options_.n), Message{.text = more_.echo, .reasoning = {}, .calls = {}}) {}

  bool keep(Kept done) override {
    if (!more_.keeper) return false;
    more_.keeper(whole(), std::move(done));
    return true;
  }

 private:
  std::string add(int, int index, Choice& choice, Event& event) override {
    Json content;
    if (options_.logprobs) {
      content = logprobs_content(*engine_, text_logprobs(event, options_.keep_stop), options_.top_logprobs,
                                 options_.tokens_as_ids);
    }
    if (!more_.include_reasoning) {
      std::erase_if(event.deltas, [](const Delta& d) { return std::holds_alternative<ReasoningDelta>(d); });
    }
    for (Delta& delta : event.deltas) {
      if (auto* begin = std::get_if<ToolCallBegin>(&delta); begin != nullptr && begin->id.empty()) {
        begin->id = call_id(index, begin->index);
      }
      choice.calls_tools |= std::holds_alternative<ToolCallBegin>(delta);
      if (collects()) std::visit(messages_[static_cast<size_t>(index)], delta);
    }
    if (collects() && options_.logprobs) {
      if (choice.logprobs.is_null()) choice.logprobs = Json::array();
      Json kept = options_.stream ? content : std::move(content);
      for (Json& entry : kept) choice.logprobs.push_back(std::move(entry));
    }
    return options_.stream ? add_to_stream(index, choice, event, std::move(content)) : std::string();
  }

  // Different for every call: the answer's own id is random.
  std::string call_id(int index, int call) const {
    const size_t random = options_.id.find('-') + 1;
    return fmt::format("call_{}{:02x}{:02x}", std::string_view(options_.id).substr(random, 20), index, call);
  }

  std::string add_to_stream(int index, Choice& choice, Event& event, Json content) {
    std::string out, ids;  // the ids of the event's tokens go with its first chunk
    Usage usage = event.usage;
    const auto add_chunk = [&](std::string_view delta, const Json& logprobs, std::string_view finish = kUnfinished) {
      out += chunk(choice_json(index, delta, logprobs, finish, std::exchange(ids, {})), usage,
                   std::exchange(prompt_member_, {}));
    };
    if (!prompts_[0].empty() && !std::exchange(prompt_sent_, true)) {
      prompt_member_ = ",\"prompt_token_ids\":" + ids_text(prompts_[0]);
    }
    if (!choice.begun) {
      choice.begun = true;
      usage.completion_tokens = usage.reasoning_tokens = 0;  // these chunks have no token of the answer
      add_chunk(deltas_.begin(), nullptr);
      if (!more_.echo.empty()) add_chunk(deltas_(TextDelta{more_.echo}), nullptr);
      usage = event.usage;
    }
    if (options_.token_ids && !event.tokens.empty()) ids = ",\"token_ids\":" + ids_text(event.tokens);
    // Tokens that complete no character come with an empty text.
    const bool reports_tokens = (content.is_array() && !content.empty()) || (!ids.empty() && !event.finish);
    if (event.deltas.empty() && reports_tokens) event.deltas.emplace_back(TextDelta{});
    for (const Delta& delta : event.deltas) {
      add_chunk(std::visit(deltas_, delta), std::exchange(content, nullptr));
    }
    if (event.finish) add_chunk(deltas_.end(), nullptr, finish_members(choice, stopped(choice)));
    return out;
  }

  std::string_view stopped(const Choice& choice) const {
    if (!choice.calls_tools) return "stop";
    return more_.legacy_functions ? "function_call" : "tool_calls";
  }

  static std::string choice_json(int index, std::string_view delta, const Json& content, std::string_view finish,
                                 std::string_view ids) {
    const std::string logprobs =
        content.is_null() ? "null" : fmt::format(R"({{"content":{},"refusal":null}})", dump_json(content));
    return fmt::format(R"({{"index":{},"delta":{},"logprobs":{},{}{}}})", index, delta, logprobs, finish, ids);
  }

  Json whole_choice(int index, Choice& choice) override {
    Json out = {
        {"index", index},
        {"message", messages_[static_cast<size_t>(index)].json(more_.legacy_functions, deltas_.tells_reasoning)},
        {"logprobs", nullptr}};
    if (options_.logprobs) out["logprobs"] = {{"content", std::move(choice.logprobs)}, {"refusal", nullptr}};
    out.update(parse_json(fmt::format("{{{}}}", finish_members(choice, stopped(choice)))));
    out["token_ids"] = options_.token_ids ? Json(std::move(choice.tokens)) : Json();
    return out;
  }

  void extend_body(Json& body) override {
    // vLLM's clients read the members, whether they were asked for or not.
    body["prompt_token_ids"] = options_.token_ids ? Json(prompts_[0]) : Json();
    const bool scored = !prompt_logprobs_[0].empty();
    body["prompt_logprobs"] = scored ? prompt_logprobs_json(*engine_, prompt_logprobs_[0]) : Json();
  }

  const ChatOptions more_;
  const DeltaText deltas_;
  std::vector<Message> messages_;  // by choice, when the answer is collected
  std::string prompt_member_;      // for the first chunk
  bool prompt_sent_ = false;
};

void set_max_completion_tokens(Fields& f, const Json& v) {
  f.of<SamplingParams>().max_tokens = v.get<int>();
  f.of<ChatFields>().has_max_completion_tokens = true;
  f.of<GenerationFields>().max_tokens_name = "max_completion_tokens";
}

// "none", "auto", "required", or {"type": "function", "function": {"name": ...}}.
void set_tool_choice(Fields& f, const Json& v) {
  const FieldPath path = "tool_choice";
  if (v.is_object()) {
    const auto type = v.find("type");
    if (type == v.end()) throw missing_parameter("tool_choice.type");
    if (expect_string(*type, path / "type") != "function") {
      throw invalid_value("tool_choice.type", fmt::format("Invalid value: '{}'. Supported values are: 'function'.",
                                                          quotable(type->get<std::string>())));
    }
    const auto function = v.find("function");
    if (function == v.end()) throw missing_parameter("tool_choice.function");
    const FieldPath inner = path / "function";
    const auto name = expect_object(*function, inner).find("name");
    if (name == function->end()) throw missing_parameter("tool_choice.function.name");
    expect_string(*name, inner / "name");
  } else {
    constexpr std::string_view kChoices[] = {"none", "auto", "required"};
    expect_one_of(expect_string(v, path), "tool_choice", kChoices);
  }
  f.of<ConversationFields>().tool_choice = v;
}

constexpr auto kChatParameters = std::to_array<Parameter>({
    {.name = "max_completion_tokens",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .fallback = "max_tokens",
     .help = "the newer name of max_tokens",
     .set = set_max_completion_tokens},
    {.name = "echo",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "with continue_final_message: begin the answer with the message that it continues",
     .set = assign<&ChatFields::echo>},
    tool_choice_row(set_tool_choice),
    parallel_tool_calls_row(),
    {.name = "store",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "keep the chat completion, for GET /v1/chat/completions",
     .set = assign<&ChatStoreFields::store>},
    metadata_row("labels of a stored chat completion: texts of at most 512 characters under keys of at most 64",
                 [](Fields& f, const Json& v) { f.of<ChatStoreFields>().metadata = &checked_metadata(v); }),
    refused("best_of", "[1]"),
    refused("audio"),
    refused("modalities", R"([["text"]])"),
    refused("prediction"),
    refused("web_search_options"),
    refused("verbosity", R"(["medium"])"),
    refused("documents"),
});

// Makes tools of functions. An answer to functions has one call at most.
void apply_legacy_functions(Call& call) {
  const auto& legacy = call.fields.of<LegacyFunctions>();
  auto& conversation = call.fields.of<ConversationFields>();
  if (!legacy.used()) {
    if (legacy.function_call.is_null() || is_string(legacy.function_call, "none")) return;
    throw invalid_value("function_call", "Invalid 'function_call': it needs 'functions'.");
  }
  for (const auto& [name, given] : {std::pair("tools", !conversation.tools.is_null()),
                                    std::pair("tool_choice", !conversation.tool_choice.is_null())}) {
    if (!given) continue;
    throw ApiError{.message = fmt::format("Setting 'functions' and '{}' at the same time is not supported.", name),
                   .param = "functions",
                   .code = "invalid_parameter_combination"};
  }
  conversation.tools = legacy_tools(legacy);
  conversation.tool_choice = legacy_tool_choice(legacy);
  conversation.parallel_tool_calls = call.info().tool_syntax.empty();  // forbidden where calls are read at all
  conversation.names = {
      .tools = "functions", .choice = "function_call", .chosen = "function_call.name", .parallel = "functions"};
}

// Checks rules between fields.
void check_chat(Call& call) {
  const auto& chat = call.fields.of<ChatFields>();
  const auto& conversation = call.fields.of<ConversationFields>();
  check_generation(call, /*echo=*/false);
  if (!conversation.messages.is_array()) throw missing_parameter("messages");
  if (chat.has_max_completion_tokens && call.fields.of<GenerationFields>().has_max_tokens) {
    throw ApiError{.message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
                   .param = "max_tokens",
                   .code = "invalid_parameter_combination"};
  }
  apply_logprobs(call.fields);
  if (!conversation.parallel_tool_calls && (!conversation.tools.is_array() || conversation.tools.empty())) {
    throw invalid_value("parallel_tool_calls", "Invalid 'parallel_tool_calls': it needs 'tools'.");
  }
  const bool calls = conversation.tool_choice.is_object() || is_string(conversation.tool_choice, "required");
  if ((conversation.tool_choice.is_string() && conversation.tools.is_null()) ||
      (calls && (!conversation.tools.is_array() || conversation.tools.empty()))) {
    throw invalid_value("tool_choice", "Invalid 'tool_choice': it needs 'tools'.");
  }
}

// The text that the answer continues, if the answer is to begin with it.
std::string echo_of(Call& call) {
  const auto& conversation = call.fields.of<ConversationFields>();
  if (!call.fields.of<ChatFields>().echo || !conversation.continue_final_message) return {};
  UnknownFields ignored;  // the prompt reports them
  const Json content = template_messages(conversation.messages, ignored).back().at("content");
  return content.is_string() ? content.get<std::string>() : std::string();
}

void run_chat(Call& call) {
  ChatRequest request = openai_chat_request(call);
  ChatKeeper keeper = chat_keeper(call);
  const bool keeps = static_cast<bool>(keeper);
  const auto& generation = call.fields.of<GenerationFields>();
  const auto& logprobs = call.fields.of<LogprobFields>();

  GenerationJob job;
  job.stream = generation.stream;
  job.headers = call.warnings();
  job.format =
      std::make_unique<ChatFormat>(call.model.engine,
                                   FormatOptions{.id = "chatcmpl-" + call.request_id,
                                                 .object = "chat.completion",
                                                 .chunk_object = "chat.completion.chunk",
                                                 .model = call.model.name,
                                                 .fingerprint = fingerprint(call.info()),
                                                 .n = generation.n,
                                                 .stream = generation.stream,
                                                 .keeps = keeps,
                                                 .include_usage = generation.include_usage,
                                                 .continuous_usage = generation.continuous_usage,
                                                 .logprobs = logprobs.wanted,
                                                 .top_logprobs = logprobs.top,
                                                 .token_ids = generation.return_token_ids,
                                                 .tokens_as_ids = generation.return_tokens_as_token_ids,
                                                 .keep_stop = request.request.sampling.include_stop_str_in_output,
                                                 .thinks = !call.info().reasoning_syntax.empty(),
                                                 .kv_transfer = transfer_answer(call)},
                                   ChatOptions{.echo = echo_of(call),
                                               .legacy_functions = call.fields.of<LegacyFunctions>().used(),
                                               .include_reasoning = wants_reasoning(call),
                                               .keeper = std::move(keeper)});
  job.chat = std::move(request);
  call.generate(std::move(job));
}

const EndpointInfo kChat{
    .name = "chat",
    .dialect = &kOpenAi,
    .paths = {"/v1/chat/completions", "/chat/completions"},
    .flags = Route::kGenerates,
    .help = "chat completions",
    .parameters = chat_parameters(),
    .shared = {{"/invocations",
                [](const Json& body, Task task) { return task == Task::kGenerate && body.contains("messages"); }}},
    .run = run_chat};
const Registry<EndpointInfo> registered_chat{kChat};

}  // namespace

std::vector<std::span<const Parameter>> chat_parameters() {
  return {model_parameter(),         conversation_parameters(), generation_parameters(), grammar_parameters(),
          kChatParameters,           logprob_parameters(),      reasoning_parameters(),  legacy_function_parameters(),
          special_token_parameter(), label_parameter(),         transfer_parameters(),   module_parameters(),
          foreign_parameters()};
}

ChatRequest openai_chat_request(Call& call) {
  expect_generates(call);
  apply_legacy_functions(call);
  check_chat(call);
  apply_reasoning(call);
  const auto& chat = call.fields.of<ChatFields>();
  call.fields.of<ConversationFields>().thinking_budget = call.fields.of<ReasoningFields>().budget;
  ChatRequest request = chat_request(call);
  request.request.max_tokens_is_default = gives_way(call, request.request) && !chat.has_max_completion_tokens;
  apply_transfer(call, request.request);
  read_modules(call);
  apply_modules(call, request.request);
  return request;
}

bool wants_reasoning(Call& call) { return call.fields.of<ReasoningFields>().include_reasoning; }

}  // namespace sluice::server
