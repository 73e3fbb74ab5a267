// /tokenize, with vLLM's fields and llama.cpp's, and /chat/completions/input_tokens.
#include <fmt/core.h>

#include <array>
#include <iterator>

#include "server/openai/format.h"
#include "server/openai/shared_fields.h"
#include "server/tool_rows.h"

namespace sluice::server::openai::tokenize {
namespace {

using Type = Parameter::Type;

constexpr size_t kMostBytes = 1 << 20;  // accepted whatever the context: a fifth of a second of work

struct TokenizeFields {
  Json prompt;                         // a string, an array of strings, or null
  std::optional<std::string> content;  // llama.cpp's name of the prompt
  bool add_special = false;            // with content
  bool with_pieces = false;
  bool return_token_strs = false;
};

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "prompt",
     .type = Type::kStrings,
     .max_items = 2048,
     .max_bytes = kTextBytes,
     .fallback = "required unless there are messages",
     .help =
         "the text; at most 1 MiB, or 16 bytes per token of the context if that is more; or an array of texts, which "
         "is answered by arrays",
     .set = assign<&TokenizeFields::prompt>},
    {.name = "return_token_strs",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "report the vocabulary's spelling of each token",
     .set = assign<&TokenizeFields::return_token_strs>},
    {.name = "content",
     .type = Type::kString,
     .max_bytes = kTextBytes,
     .fallback = "none",
     .help = "llama.cpp's name of prompt; add_special then decides about special tokens",
     .set = assign<&TokenizeFields::content>},
    {.name = "add_special",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "with content: add the tokens that the tokenizer puts around a text",
     .set = assign<&TokenizeFields::add_special>},
    {.name = "with_pieces",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "tokens are objects of the id and the piece of text that it stands for",
     .set = assign<&TokenizeFields::with_pieces>},
    refused("parse_special", "[true]"),
});

void set_tool_choice(Fields& f, const Json& v) {
  if (!v.is_object()) expect_string(v, "tool_choice");
  f.of<ConversationFields>().tool_choice = v;
}

constexpr Parameter kToolChoice[] = {tool_choice_row(set_tool_choice)};

// As a chat completion has them: with "none", the template is not told of the tools.
std::vector<TokenId> tokens_of_chat(Call& call) {
  return tokenize_chat(call, !is_string(call.fields.of<ConversationFields>().tool_choice, "none"));
}

// The piece of text that the token stands for, or its bytes if they are not text by themselves.
Json piece_of(const Engine& engine, TokenId id) {
  const std::string bytes = engine.token_bytes(id);
  if (is_utf8(bytes)) return bytes;
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

std::vector<TokenId> tokens_of_prompt(Call& call, const Json& prompt) {
  // Counting tokens is what this endpoint is for: a text may be longer than the context.
  const bool special = call.fields.of<SpecialTokenFields>().add_special_tokens.value_or(true);
  return tokenize_text(call, prompt.get_ref<const std::string&>(), special, "prompt", kMostBytes);
}

std::vector<TokenId> tokens_of(Call& call, const TokenizeFields& fields) {
  if (fields.content) return tokenize_text(call, *fields.content, fields.add_special, "content", kMostBytes);
  if (fields.prompt.is_null()) return tokens_of_chat(call);
  return tokens_of_prompt(call, fields.prompt);
}

void check(Call& call, const TokenizeFields& fields) {
  const bool is_chat = call.fields.of<ConversationFields>().messages.is_array(), has_prompt = !fields.prompt.is_null();
  if (is_chat + has_prompt + fields.content.has_value() > 1) {
    throw ApiError{.message = "Setting several of 'prompt', 'content' and 'messages' is not supported.",
                   .param = has_prompt ? "prompt" : "content",
                   .code = "invalid_parameter_combination"};
  }
  if (!is_chat && !has_prompt && !fields.content) throw missing_parameter("prompt");
}

// The tokens of a text as JSON texts: a tree of as many values as there are tokens would take a hundred times the
// memory.
struct Printed {
  std::string count, ids, strings;
};

Printed print(Call& call, const TokenizeFields& fields, const std::vector<TokenId>& tokens) {
  std::string ids, strings;
  for (const TokenId id : tokens) {
    if (!ids.empty()) ids += ',';
    if (fields.with_pieces) {
      fmt::format_to(std::back_inserter(ids), R"({{"id":{},"piece":{}}})", id, dump_json(piece_of(call.engine(), id)));
    } else {
      fmt::format_to(std::back_inserter(ids), "{}", id);
    }
    if (!fields.return_token_strs) continue;
    if (!strings.empty()) strings += ',';
    strings += dump_json(call.engine().token_text(id));
  }
  return {
      .count = std::to_string(tokens.size()), .ids = fmt::format("[{}]", ids), .strings = fmt::format("[{}]", strings)};
}

// The same of several texts.
Printed print_all(Call& call, const TokenizeFields& fields) {
  size_t bytes = 0;
  for (const Json& text : fields.prompt) bytes += text.get_ref<const std::string&>().size();
  check_text_length(bytes, call.info().max_model_len, "prompt", kMostBytes);
  Printed all{.count = "[", .ids = "[", .strings = "["};
  for (const Json& text : fields.prompt) {
    const Printed one = print(call, fields, tokens_of_prompt(call, text));
    const char* separator = all.count.size() > 1 ? "," : "";
    all.count += separator + one.count;
    all.ids += separator + one.ids;
    all.strings += separator + one.strings;
  }
  return {.count = all.count + "]", .ids = all.ids + "]", .strings = all.strings + "]"};
}

void run(Call& call) {
  const auto& fields = call.fields.of<TokenizeFields>();
  check(call, fields);
  const Printed printed =
      fields.prompt.is_array() ? print_all(call, fields) : print(call, fields, tokens_of(call, fields));
  call.send(
      {.body = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":{},"token_strs":{}}})", printed.count,
                           call.info().max_model_len, printed.ids, fields.return_token_strs ? printed.strings : "null"),
       .headers = call.warnings()});
}

void count(Call& call) {
  if (!call.fields.of<ConversationFields>().messages.is_array()) throw missing_parameter("messages");
  const size_t tokens = tokens_of_chat(call).size();
  call.send(
      {.body = dump_json({{"object", "response.input_tokens"}, {"input_tokens", tokens}}), .headers = call.warnings()});
}

const EndpointInfo counting{.name = "chat input_tokens",
                            .dialect = &kOpenAi,
                            .paths = {"/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"},
                            .help = "tokens of messages, as llama-server counts them",
                            .parameters = {model_parameter(), conversation_parameters(), kToolChoice},
                            .run = count};
const EndpointInfo endpoint{
    .name = "tokenize",
    .dialect = &kOpenAi,
    .paths = {"/tokenize", "/v1/tokenize"},
    .help = "text or messages to token ids",
    .parameters = {model_parameter(), conversation_parameters(), kToolChoice, kParameters, special_token_parameter()},
    .run = run};
const Registry<EndpointInfo> registered{endpoint}, registered_counting{counting};

}  // namespace
}  // namespace sluice::server::openai::tokenize
