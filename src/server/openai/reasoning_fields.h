// Fields of the chat API that turn thoughts on and off, limit them, and leave them out of the answer.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "server/endpoint.h"

namespace sluice::server {

struct ReasoningFields {
  std::string effort;            // "none", "minimal", ..., or empty
  std::optional<bool> thinking;  // turns thoughts on or off
  std::string thinking_param;    // the field that said so
  std::optional<int> budget;     // tokens of thought
  std::string budget_param;      // the field that gave it
  bool include_reasoning = true;
};

std::span<const Parameter> reasoning_parameters();          // ReasoningFields
std::span<const Parameter> refused_reasoning_parameters();  // the same where there is no chat

// Adds what the fields ask of the chat template to its variables (ConversationFields). A switch that the template does
// not have is an unknown field. Throws ApiError for what this model cannot do.
void apply_reasoning(Call& call);

}  // namespace sluice::server
