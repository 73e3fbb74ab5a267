// /api/chat.
#include <array>

#include "server/ollama/conversation.h"
#include "server/ollama/format.h"
#include "server/ollama/options.h"
#include "server/rows.h"
#include "server/tool_rows.h"

namespace sluice::server::ollama::chat {
namespace {

using Type = Parameter::Type;

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "messages",
     .type = Type::kArray,
     .max_items = 16384,
     .max_bytes = kTextBytes,
     .fallback = "[]",
     .help = "the conversation: roles system, user, assistant, tool; without messages the model is only loaded",
     .set = assign<&ConversationFields::messages>},
    tools_row(),
});

void run(Call& call) {
  expect_generates(call);
  read_ollama_options(call);
  auto& conversation = call.fields.of<ConversationFields>();
  if (!conversation.messages.is_array() || conversation.messages.empty()) {
    return answer_load(call, "message", {{"role", "assistant"}, {"content", ""}});
  }
  conversation.messages = translate_ollama_messages(conversation.messages, call.unknown);
  GenerationJob job;
  job.chat = chat_request(call);
  job.stream = call.fields.of<OllamaFields>().stream;
  job.headers = call.warnings();
  job.format = std::make_unique<OllamaFormat>(OllamaFormat::Kind::kChat, call);
  call.generate(std::move(job));
}

const EndpointInfo endpoint{
    .name = "ollama chat",
    .dialect = &kOllama,
    .paths = {"/api/chat"},
    .flags = Route::kGenerates,
    .help = "Ollama's chat",
    .parameters = {model_parameter(), kParameters, ollama_generation_parameters(), logprob_parameters(),
                   ollama_keep_alive_parameter()},
    .needs_engine = [](const Json& body) { return needs_engine_unless_unloading(body, "messages"); },
    .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::ollama::chat
