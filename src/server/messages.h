// Conversations and tools of the chat API: checks them field by field and brings them into the form templates expect.
#pragma once

#include "base/json.h"
#include "server/field_path.h"

namespace sluice::server {

// The messages for the template: text parts are joined, arguments of tool calls are parsed, "developer" becomes
// "system". The older function_call becomes a call of a tool, and role "function" its result. Throws ApiError that
// names the path. Unknown fields are added to `unknown`.
Json template_messages(const Json& messages, UnknownFields& unknown);

// Checks a function that may be called and returns it unchanged. Throws ApiError that names the path.
const Json& check_function(const Json& function, const FieldPath& path, UnknownFields& unknown);

// Checks the tools and returns them unchanged. Throws ApiError that names the path.
const Json& check_tools(const Json& tools, UnknownFields& unknown);

}  // namespace sluice::server
