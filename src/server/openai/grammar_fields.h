// Fields that constrain an answer to a grammar: OpenAI's response_format, vLLM's structured_outputs and guided_*, and
// llama.cpp's grammar and json_schema. A request may have one of them.
#pragma once

#include <span>

#include "server/engine_request.h"
#include "server/parameters.h"

namespace sluice::server {

// Throws ApiError if the request has another grammar already.
void set_grammar(Fields& fields, GrammarSpec grammar);
void set_response_format(Fields& fields, const Json& value);
std::span<const Parameter> grammar_parameters();  // GenerationFields

}  // namespace sluice::server
