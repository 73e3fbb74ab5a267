// A stored chat completion also tells what was asked for.
#include "server/openai/chat_keeper.h"

#include "server/engine_request.h"
#include "server/store/store.h"

namespace sluice::server {
namespace {

// The members that OpenAI adds to the answer.
Json request_members(Call& call) {
  const auto& sampling = call.fields.of<SamplingParams>();
  const Json* format = call.fields.of<GenerationFields>().response_format;
  const auto& conversation = call.fields.of<ConversationFields>();
  return {{"request_id", call.request_id},
          {"tool_choice", conversation.tool_choice},
          {"seed", sampling.seed ? Json(*sampling.seed) : Json()},
          {"top_p", sampling.top_p},
          {"temperature", sampling.temperature},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"input_user", nullptr},
          {"service_tier", "default"},
          {"tools", conversation.tools},
          {"response_format", format != nullptr ? *format : Json()}};
}

}  // namespace

ChatKeeper chat_keeper(Call& call) {
  const auto& fields = call.fields.of<ChatStoreFields>();
  if (!fields.store) return {};
  const auto store = call.shared->of<Store>();
  store->expect_writable();
  StoredChat kept{.id = {},
                  .tenant = call.tenant,
                  .model = call.model.name,
                  .metadata = fields.metadata != nullptr ? dump_json(*fields.metadata) : "{}",
                  .body = {},
                  .messages = dump_json(call.fields.of<ConversationFields>().messages)};
  // Weak, because the store owns what waits in it. The keeper is called once.
  return [weak = std::weak_ptr(store), kept = std::move(kept), echo = request_members(call)](const Json& completion,
                                                                                             Kept done) mutable {
    kept.id = completion.at("id").get<std::string>();
    Json whole = completion;
    whole.update(echo);
    kept.body = dump_json(whole);
    put(weak, std::move(kept), std::move(done));
  };
}

}  // namespace sluice::server
