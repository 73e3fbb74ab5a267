// /completion, also as /completions: continues a prompt, or each of several.
#include <fmt/core.h>

#include <algorithm>

#include "server/llamacpp/fields.h"
#include "server/openai/grammar_fields.h"

namespace sluice::server::llamacpp::completion {
namespace {

using Type = Parameter::Type;

constexpr size_t kMostPrompts = 2048;
constexpr size_t kMostCopies = 4 << 20;  // bytes that the requests of all prompts have copies of

struct PromptFields {
  const Json* prompt = nullptr;
};

constexpr Parameter kPrompt[] = {{.name = "prompt",
                                  .type = Type::kAny,
                                  .max_bytes = kTextsBytes,
                                  .required = true,
                                  .fallback = "required",
                                  .help = "a string, an array of token ids and strings, or an array of such prompts, "
                                          "which is answered by an array; at most 2048",
                                  .set = assign<&PromptFields::prompt>}};

// An array that has numbers is one prompt; others are lists of prompts.
bool is_list(const Json& prompt) {
  return prompt.is_array() && std::ranges::none_of(prompt, [](const Json& part) { return part.is_number(); });
}

void check_copies(const Request& request, size_t prompts) {
  const size_t copied = (request.grammar ? request.grammar->text.size() : 0) +
                        request.sampling.logit_bias.size() * sizeof(request.sampling.logit_bias[0]);
  if (prompts == 1 || prompts * copied <= kMostCopies) return;
  throw ApiError{.message = fmt::format("Invalid 'prompt': {} prompts with a grammar and lists of tokens of {} bytes. "
                                        "Expected at most {} bytes for all prompts together.",
                                        prompts, copied, kMostCopies),
                 .param = "prompt",
                 .code = "too_many_sequences"};
}

void run(Call& call) {
  expect_generates(call);
  const Json& given = *call.fields.of<PromptFields>().prompt;
  const FieldPath path = "prompt";
  const bool list = is_list(given);
  if (list) expect_array(given, path, 1, kMostPrompts);
  const size_t count = list ? given.size() : 1;
  const Request common = llama_request(call);
  check_copies(common, count);
  std::vector<Request> requests;
  std::vector<std::string> prompts;
  for (size_t i = 0; i < count; ++i) {
    const Json& prompt = list ? given[i] : given;
    const FieldPath where = path[i];
    Request request = common;
    request.prompt_param = list ? where.str() : path.str();
    request.prompt = llama_tokens(call, prompt, /*add_special=*/true, list ? where : path);
    fit_context(request, call.info().max_model_len, "prompt");
    prompts.push_back(prompt.is_string() ? prompt.get<std::string>() : call.engine().detokenize(request.prompt, false));
    requests.push_back(std::move(request));
  }
  llama_generate(call, std::move(requests), std::move(prompts));
}

const EndpointInfo endpoint{.name = "llama.cpp completion",
                            .dialect = &kLlamaCpp,
                            .paths = {"/completion", "/completions"},
                            .flags = Route::kGenerates,
                            .help = "llama.cpp's text completions",
                            .parameters = {model_parameter(), kPrompt, llama_parameters(), grammar_parameters()},
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::llamacpp::completion
