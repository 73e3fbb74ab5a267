// Reads bodies by the rows of the server's endpoints; see requests.h.
#include "binding/requests.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "binding/call.h"
#include "server/openai/chat_keeper.h"
#include "server/openai/requests.h"

namespace sluice::binding {

GenerationBody read_generation(Engine& engine, std::string_view text) {
  return with_call(engine, [&](DirectCall& direct) {
    const Json body = parse_body(text);
    server::Call& call = direct.call();
    const SamplingParams& defaults = engine.model().default_sampling;
    GenerationBody out;
    if (body.contains("messages")) {
      direct.read(body, server::chat_parameters(), defaults);
      if (call.fields.of<server::ChatStoreFields>().store) {
        throw server::unsupported_parameter("store", "is not supported without a server. Accepted: null or false");
      }
      out.chat = server::openai_chat_request(call);
      out.include_reasoning = server::wants_reasoning(call);
    } else {
      direct.read(body, server::completion_parameters(), defaults);
      out.request = server::openai_completion_request(call);
    }
    call.warnings();  // throws for unknown fields
    return out;
  });
}

Request read_sampling(Engine& engine, std::string_view text, const SamplingParams& defaults) {
  return with_call(engine, [&](DirectCall& direct) {
    direct.read(text, server::completion_parameters(), defaults);
    Request request = server::openai_completion_fields(direct.call());
    direct.call().warnings();
    return request;
  });
}

void check_sampling(std::string_view text) {
  try {
    server::Fields fields;
    server::UnknownFields unknown;
    read_parameters(server::completion_parameters(), parse_body(text), std::numeric_limits<TokenId>::max(), fields,
                    unknown);
    if (unknown.empty()) return;
    throw server::unsupported_parameter(unknown.names()[0], "is not known");
  } catch (const server::ApiError& error) {
    throw to_error(error);
  }
}

ChatPrompt read_conversation(Engine& engine, std::string_view text) {
  return with_call(engine, [&](DirectCall& direct) {
    direct.read(text, server::chat_parameters(), {});
    server::Call& call = direct.call();
    if (!call.fields.of<server::ConversationFields>().messages.is_array()) throw server::missing_parameter("messages");
    ChatPrompt prompt = server::chat_prompt(call, /*with_tools=*/true);
    call.warnings();
    return prompt;
  });
}

RequestId submit(Engine& engine, GenerationBody body, EventSink sink) {
  if (!body.include_reasoning) {
    sink = [sink = std::move(sink)](Event event) {
      std::erase_if(event.deltas, [](const Delta& d) { return std::holds_alternative<ReasoningDelta>(d); });
      sink(std::move(event));
    };
  }
  if (body.chat) return engine.submit_chat(std::move(*body.chat), std::move(sink));
  return engine.submit(std::move(body.request), std::move(sink));
}

}  // namespace sluice::binding
