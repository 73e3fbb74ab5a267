// Fields of OpenAI's Responses API.
#pragma once

#include <span>
#include <string>

#include "server/engine_request.h"
#include "server/parameters.h"

namespace sluice::server {

struct ResponseFields {
  const Json* input = nullptr;  // a string or an array of items
  std::string instructions;
  std::string previous_response_id;
  Json tools, tool_choice;       // as the client wrote them, or null
  Json text_format;              // as the client wrote it, or null
  Json effort;                   // of reasoning: a string or null
  Json metadata;                 // object or null
  Json labels = Json::object();  // user, safety_identifier, prompt_cache_key: the answer repeats them
  bool store = true;
  bool logprobs = false;
  int top_logprobs = 0;
  bool background = false;
  bool messages = false;  // vLLM's enable_response_messages
};

std::span<const Parameter> response_parameters();
// The sampling parameters and max_output_tokens.
std::span<const Parameter> response_sampling_parameters();

// Sets ConversationFields: messages of the previous response, instructions, input; tools. Throws ApiError.
void translate_response_request(Call& call);

}  // namespace sluice::server
