// The input of OpenAI's Responses API, translated to messages of the chat API.
#pragma once

#include "base/json.h"
#include "server/field_path.h"

namespace sluice::server {

// Appends the items to `messages`. `input` is a string or an array. Throws ApiError that names the path.
void append_input(const Json& input, UnknownFields& unknown, Json& messages);

// Appends a message of the system. Those at the beginning become one message.
void append_system(const std::string& text, Json& messages);

// The items of the input: a string becomes a message of the user.
Json input_items(const Json& input);

// The tools in the form of the chat API.
Json translate_response_tools(const Json& tools, UnknownFields& unknown);

}  // namespace sluice::server
