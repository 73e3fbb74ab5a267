// The field prompt_modules: texts that are computed apart, before the prompt (docs/prompt-modules.md).
#pragma once

#include <span>
#include <vector>

#include "server/endpoint.h"

namespace sluice::server {

struct ModuleFields {
  const Json* given = nullptr;  // an array
  std::vector<PromptModule> modules;
  std::vector<TokenId> tokens;  // of all modules
};

std::span<const Parameter> module_parameters();  // ModuleFields

// Tokenizes the given modules. Throws ApiError or Error.
void read_modules(Call& call);
// Makes the modules that were read the beginning of the request's prompt. Its own text is to be appended. Throws
// ApiError for fields that do not work with modules.
void apply_modules(Call& call, Request& request);

}  // namespace sluice::server
