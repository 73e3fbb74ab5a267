// Conversations and tools of the chat API: checks them field by field and brings them into the form templates expect.
#pragma once

#include "base/json.h"
#include "server/field_path.h"

namespace sluice::server {

// The messages for the template: text parts are joined, arguments of tool calls are parsed, "developer" becomes
// "system". Throws ApiError that names the path. Unknown fields are added to `unknown`.
Json template_messages(const Json& messages, UnknownFields& unknown);

// Checks the tools and returns them unchanged. Throws ApiError that names the path.
const Json& check_tools(const Json& tools, UnknownFields& unknown);

}  // namespace sluice::server
