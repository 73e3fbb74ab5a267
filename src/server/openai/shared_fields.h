// Fields that several endpoints of OpenAI's dialect have.
#pragma once

#include <span>

#include "server/engine_request.h"
#include "server/openai/dialect.h"
#include "server/rows.h"

namespace sluice::server {

// Groups of rows.
std::span<const Parameter> generation_parameters();    // SamplingParams, GenerationFields
std::span<const Parameter> choice_parameters();        // some of these: which tokens are chosen, and what ends the text
std::span<const Parameter> conversation_parameters();  // ConversationFields
std::span<const Parameter> special_token_parameter();  // SpecialTokenFields
std::span<const Parameter> label_parameter();          // "user", which changes nothing
std::span<const Parameter> foreign_parameters();       // fields of other servers, refused by name

}  // namespace sluice::server
