// Conversations of Anthropic's API: their fields, and their translation to the form that the engine takes.
#pragma once

#include <span>

#include "server/engine_request.h"
#include "server/parameters.h"

namespace sluice::server {

struct AnthropicFields {
  const Json* system = nullptr;    // a string, an array of text blocks, or null
  const Json* messages = nullptr;  // array
  Json tools;                      // array or null
  Json tool_choice;                // object or null
};

// system, messages, tools, tool_choice, thinking and what belongs to them.
std::span<const Parameter> anthropic_conversation_parameters();

// Fills ConversationFields from AnthropicFields. Throws ApiError that names the path.
void translate_conversation(Call& call);

}  // namespace sluice::server
