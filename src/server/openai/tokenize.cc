// /tokenize and /detokenize, with vLLM's fields.
#include <fmt/core.h>

#include <iterator>

#include "server/openai/openai.h"
#include "server/openai/reading.h"

namespace sluice::server {
namespace {

constexpr size_t kMostBytes = 1 << 20;  // accepted whatever the context: a fifth of a second of work

}  // namespace

HttpResponse OpenAiApi::tokenize(const Reading& reading) const {
  Reading text = reading;
  RequestFields& fields = text.fields;
  std::vector<TokenId> tokens;
  if (fields.messages.is_array() && !fields.prompt.is_null()) {
    throw ApiError{.message = "Setting 'prompt' and 'messages' at the same time is not supported.",
                   .param = "prompt",
                   .code = "invalid_parameter_combination"};
  }
  if (fields.messages.is_array()) {
    tokens = tokenize_chat(text);
  } else if (fields.prompt.is_null()) {
    throw missing_parameter("prompt");
  } else {
    // Counting tokens is what this endpoint is for: a text may be longer than the context.
    tokens = tokenize_text(expect_string(fields.prompt, "prompt"), fields.add_special_tokens.value_or(true), "prompt",
                           kMostBytes);
  }
  // Written as text: a tree of as many values as there are tokens would take a hundred times the memory.
  std::string ids, strings;
  for (const TokenId id : tokens) {
    fmt::format_to(std::back_inserter(ids), "{}{}", ids.empty() ? "" : ",", id);
    if (!fields.return_token_strs) continue;
    if (!strings.empty()) strings += ',';
    strings += dump_json(engine_.token_text(id));
  }
  return {.body = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}],"token_strs":{}}})", tokens.size(),
                              engine_.model().max_model_len, ids,
                              fields.return_token_strs ? fmt::format("[{}]", strings) : "null"),
          .headers = judge_unknown(text)};
}

HttpResponse OpenAiApi::detokenize(const Reading& reading) const {
  return {.body = dump_json({{"prompt", engine_.detokenize(reading.fields.tokens, false)}}),
          .headers = judge_unknown(reading)};
}

}  // namespace sluice::server
