// Chat templates that --chat-template knows by name: the names are llama-server's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// The Jinja text of a name, or nullopt. It does not write the tokens that the tokenizer puts before every text.
std::optional<std::string> builtin_template(std::string_view name);
std::string builtin_template_names();  // "bailing, bailing-think, ..."

}  // namespace sluice
