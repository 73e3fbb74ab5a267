// Fields and prompts of llama.cpp's completions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "server/engine_request.h"
#include "server/llamacpp/dialect.h"
#include "server/rows.h"

namespace sluice::server {

struct LlamaFields {
  const Json* logit_bias = nullptr;  // an object, or an array of pairs
  const Json* lora = nullptr;        // an array of objects; null: the model's name says it
  bool return_tokens = false;
  int n_probs = 0;
  bool timings_per_token = false;
  bool cache_prompt = true;
  std::vector<std::string> response_fields{};
};

std::span<const Parameter> llama_parameters();  // all but the prompt

// The tokens of a prompt: a string, an object {"prompt_string"}, token ids, or an array of ids and strings, whose first
// text begins the prompt. With `add_special`, a prompt that begins with a text gets the tokens that the tokenizer puts
// around one. Throws ApiError.
std::vector<TokenId> llama_tokens(const Call& call, const Json& prompt, bool add_special, const FieldPath& path);

// Answers a request for several prompts.
void llama_generate(Call& call, std::vector<Request> requests, std::vector<std::string> prompts);
// A request with everything but its prompt.
Request llama_request(Call& call);

}  // namespace sluice::server
