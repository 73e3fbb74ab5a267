// Bodies of OpenAI's API as requests for the engine. The endpoints answer them over HTTP; bindings of other languages
// read the same bodies.
#pragma once

#include <span>
#include <vector>

#include "server/engine_request.h"

namespace sluice::server {

// The fields of chat completions and of text completions.
std::vector<std::span<const Parameter>> chat_parameters();
std::vector<std::span<const Parameter>> completion_parameters();

// The request of a chat body whose fields were read. Applies the rules between fields. Throws ApiError.
ChatRequest openai_chat_request(Call& call);
// Whether the answer to a chat is to have what the model thought.
bool wants_reasoning(Call& call);

// The request of a text completion's body, but for its prompt. Applies the rules between fields. Throws ApiError.
Request openai_completion_fields(Call& call);
// The same with its prompt, which must be one. Throws ApiError; refuses `echo`.
Request openai_completion_request(Call& call);

}  // namespace sluice::server
