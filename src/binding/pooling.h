// Texts to requests for vectors and scores, with the options of the server's endpoints.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/engine.h"

namespace sluice::binding {

struct PoolingInput {
  std::variant<std::string, std::vector<TokenId>> text;  // tokens are taken as they are
  std::optional<std::string> pair{};                     // the second text of a pair
};

// `options` is a JSON object, or empty: dimensions, normalize, use_activation, prompt_name, truncate_prompt_tokens.
// Errors about texts name "texts[i]" or "pairs[i]". Throws Error(kInvalidRequest).
PoolingRequest read_pooling(Engine& engine, std::span<const PoolingInput> inputs, std::string_view options);

// Computes the vectors and waits for them. Throws Error: what Engine::embed throws, and kInternal for a fault.
PoolingResult embed(Engine& engine, PoolingRequest request);

}  // namespace sluice::binding
