// Loads templates as --chat-template does; see call_template.h.
#include "binding/call_template.h"

#include "base/json.h"
#include "engine/text.h"

namespace sluice::binding {

std::string CallTemplates::render(const ChatPrompt& chat, const std::string& chat_template) {
  ChatInput input;
  input.messages = parse_json(chat.messages);
  if (!chat.tools.empty()) input.tools = parse_json(chat.tools);
  input.kwargs = Json::object();
  const std::string& defaults = options_.default_chat_template_kwargs;
  if (!defaults.empty()) input.kwargs = parse_json(defaults);
  if (!chat.template_kwargs.empty()) input.kwargs.update(parse_json(chat.template_kwargs));
  input.add_generation_prompt = chat.add_generation_prompt;
  input.continue_final_message = chat.continue_final_message;
  return find(chat_template)->render(input);
}

std::shared_ptr<const ChatTemplate> CallTemplates::find(const std::string& chat_template) {
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<const ChatTemplate>& found = templates_[chat_template];
  if (found != nullptr) return found;
  EngineOptions options = options_;
  options.chat_template = chat_template;
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(options.model, {.allow_bin = options.allow_bin});
  found = std::make_shared<const ChatTemplate>(*load_chat_template(options, *checkpoint));
  return found;
}

}  // namespace sluice::binding
