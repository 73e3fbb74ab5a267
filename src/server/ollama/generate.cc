// /api/generate: one prompt, through the chat template unless `raw`.
#include <array>

#include "server/ollama/format.h"
#include "server/ollama/options.h"
#include "server/rows.h"

namespace sluice::server::ollama::generate {
namespace {

using Type = Parameter::Type;

struct GenerateFields {
  std::string prompt, system;
  bool raw = false;
};

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "prompt",
     .type = Type::kString,
     .max_bytes = kTextBytes,
     .fallback = "none",
     .help = "what the user says; without it the model is only loaded",
     .set = assign<&GenerateFields::prompt>},
    {.name = "system",
     .type = Type::kString,
     .max_bytes = kTextBytes,
     .fallback = "none",
     .help = "instructions before the prompt",
     .set = assign<&GenerateFields::system>},
    {.name = "raw",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "continue the prompt as it is, without the chat template",
     .set = assign<&GenerateFields::raw>},
    refused("template", R"([""])", "Set it with --chat-template"),
    refused("suffix", R"([""])"),
    refused("images", "[[]]"),
    refused("context", "[[]]", "Use '/api/chat' with messages"),
});

// The prompt as it is.
Request raw_request(Call& call, const std::string& prompt) {
  Request request = base_request(call);
  request.prompt = tokenize_text(call, prompt, /*add_special_tokens=*/true, "prompt");
  request.max_tokens_is_default = !call.fields.of<GenerationFields>().has_max_tokens;
  fit_context(request, call.info().max_model_len, "prompt");
  return request;
}

void run(Call& call) {
  expect_generates(call);
  read_ollama_options(call);
  const auto& fields = call.fields.of<GenerateFields>();
  if (fields.prompt.empty()) return answer_load(call, "response", "");
  const bool raw = fields.raw || !call.info().has_chat_template;
  if (raw && !fields.system.empty()) {
    throw unsupported_parameter("system", "needs a chat template, and 'raw' to be false");
  }
  GenerationJob job;
  if (raw) {
    job.requests.push_back(raw_request(call, fields.prompt));
  } else {
    Json messages = Json::array();
    if (!fields.system.empty()) messages.push_back({{"role", "system"}, {"content", fields.system}});
    messages.push_back({{"role", "user"}, {"content", fields.prompt}});
    call.fields.of<ConversationFields>().messages = std::move(messages);
    job.chat = chat_request(call);
    job.chat->request.prompt_param = "prompt";
  }
  job.stream = call.fields.of<OllamaFields>().stream;
  job.headers = call.warnings();
  job.format = std::make_unique<OllamaFormat>(OllamaFormat::Kind::kGenerate, call);
  call.generate(std::move(job));
}

const EndpointInfo endpoint{
    .name = "ollama generate",
    .dialect = &kOllama,
    .paths = {"/api/generate"},
    .flags = Route::kGenerates,
    .help = "Ollama's answer to one prompt",
    .parameters = {model_parameter(), kParameters, ollama_generation_parameters(), logprob_parameters(),
                   ollama_keep_alive_parameter()},
    .needs_engine = [](const Json& body) { return needs_engine_unless_unloading(body, "prompt"); },
    .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::ollama::generate
