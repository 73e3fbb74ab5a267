// Conversations and tools of the chat API: validated field by field, and brought into the form that templates expect.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace sluice::server {

// The messages for the template: text parts joined, tool-call arguments parsed, "developer" called "system". Throws
// ApiError that names the path; paths of unknown fields are added to `unknown`.
Json template_messages(const Json& messages, std::vector<std::string>& unknown);

// Checks the tools and returns them as they are.
const Json& check_tools(const Json& tools, std::vector<std::string>& unknown);

}  // namespace sluice::server
