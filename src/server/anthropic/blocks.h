// The content of messages in Anthropic's API.
#pragma once

#include <string>

#include "base/json.h"
#include "server/field_path.h"

namespace sluice::server {

// The text of a string or of an array of text blocks. Throws ApiError that names the path.
std::string anthropic_text(const Json& content, const FieldPath& path, UnknownFields& unknown);

// Appends the message to `out` in the form of OpenAI's chat API: results of tools become messages of their own.
void append_message(const Json& message, const FieldPath& path, UnknownFields& unknown, Json& out);

}  // namespace sluice::server
