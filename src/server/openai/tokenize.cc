// /tokenize, with vLLM's fields.
#include <fmt/core.h>

#include <array>
#include <iterator>

#include "server/openai/shared_fields.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

constexpr size_t kMostBytes = 1 << 20;  // accepted whatever the context: a fifth of a second of work

struct TokenizeFields {
  std::optional<std::string> prompt;
  bool return_token_strs = false;
};

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "prompt",
     .type = Type::kString,
     .max_bytes = kTextBytes,
     .fallback = "required unless there are messages",
     .help = "the text; at most 1 MiB, or 16 bytes per token of the context if that is more",
     .set = assign<&TokenizeFields::prompt>},
    {.name = "return_token_strs",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "report the vocabulary's spelling of each token",
     .set = assign<&TokenizeFields::return_token_strs>},
});

std::vector<TokenId> tokens_of(Call& call, const TokenizeFields& fields) {
  const bool is_chat = call.fields.of<ConversationFields>().messages.is_array();
  if (is_chat && fields.prompt) {
    throw ApiError{.message = "Setting 'prompt' and 'messages' at the same time is not supported.",
                   .param = "prompt",
                   .code = "invalid_parameter_combination"};
  }
  if (is_chat) return tokenize_chat(call, /*with_tools=*/true);
  if (!fields.prompt) throw missing_parameter("prompt");
  // Counting tokens is what this endpoint is for: a text may be longer than the context.
  const bool special = call.fields.of<SpecialTokenFields>().add_special_tokens.value_or(true);
  return tokenize_text(call, *fields.prompt, special, "prompt", kMostBytes);
}

void run(Call& call) {
  const auto& fields = call.fields.of<TokenizeFields>();
  const std::vector<TokenId> tokens = tokens_of(call, fields);
  // Written as text: a tree of as many values as there are tokens would take a hundred times the memory.
  std::string ids, strings;
  for (const TokenId id : tokens) {
    fmt::format_to(std::back_inserter(ids), "{}{}", ids.empty() ? "" : ",", id);
    if (!fields.return_token_strs) continue;
    if (!strings.empty()) strings += ',';
    strings += dump_json(call.engine().token_text(id));
  }
  call.send({.body = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}],"token_strs":{}}})", tokens.size(),
                                 call.info().max_model_len, ids,
                                 fields.return_token_strs ? fmt::format("[{}]", strings) : "null"),
             .headers = call.warnings()});
}

const EndpointInfo endpoint{
    .name = "tokenize",
    .dialect = &kOpenAi,
    .paths = {"/tokenize"},
    .help = "text or messages to token ids",
    .parameters = {model_parameter(), conversation_parameters(), kParameters, special_token_parameter()},
    .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server
