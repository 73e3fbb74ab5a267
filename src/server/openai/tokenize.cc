// /tokenize and /detokenize, with vLLM's fields.
#include "server/openai/openai.h"
#include "server/openai/reading.h"

namespace sluice::server {

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
    // Counting tokens is what it is for: no limit but the body's.
    tokens = engine_.tokenize(expect_string(fields.prompt, "prompt"), fields.add_special_tokens.value_or(true));
  }
  Json strings;
  if (fields.return_token_strs) {
    strings = Json::array();
    for (const TokenId id : tokens) strings.push_back(engine_.token_text(id));
  }
  const size_t count = tokens.size();
  return {.body = dump_json({{"count", count},
                             {"max_model_len", engine_.model().max_model_len},
                             {"tokens", std::move(tokens)},
                             {"token_strs", std::move(strings)}}),
          .headers = judge_unknown(text)};
}

HttpResponse OpenAiApi::detokenize(const Reading& reading) const {
  return {.body = dump_json({{"prompt", engine_.detokenize(reading.fields.tokens, false)}}),
          .headers = judge_unknown(reading)};
}

}  // namespace sluice::server
