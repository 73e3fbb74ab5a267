// A checkpoint's chat template: messages and tools to the text that the model continues.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "chat/jinja/jinja.h"

namespace sluice {

struct ChatInput {
  Json messages;   // array of objects
  Json tools;      // array of objects; null when there are none
  Json documents;  // array of objects; null when there are none
  bool add_generation_prompt = true;
  Json kwargs;  // the request's chat_template_kwargs: further variables; null or an object
};

// A template's source and the file to blame for it.
struct TemplateSource {
  std::string text;
  std::string file;
};

// Immutable: any number of threads may render at a time.
class ChatTemplate {
 public:
  // The template of a checkpoint folder: chat_template.jinja, else "chat_template" of tokenizer_config.json (a string,
  // or a list of {name, template}); further templates from additional_chat_templates/*.jinja. The one named "tool_use"
  // serves requests with tools. nullopt when the folder has none. Throws Error(kCorruptFile) that names the file.
  // With `file`, that Jinja file is the template, and the folder gives the special tokens only.
  static std::optional<ChatTemplate> from_folder(const std::string& folder, const std::string& file = {});

  // The same for the text of a tokenizer_config.json that lies in another file, of that name; without a folder.
  static std::optional<ChatTemplate> from_config(const std::string& config, const std::string& name,
                                                 const std::string& file = {});

  // `special_tokens`: object of variables like bos_token. Throws Error(kInvalidRequest), see jinja::Template.
  static ChatTemplate from_source(std::string_view source, Json special_tokens);

  // Throws Error(kInvalidRequest): a key of kwargs that must not be overridden (param "chat_template_kwargs"), or what
  // the template itself refuses.
  std::string render(const ChatInput& input,
                     std::chrono::system_clock::time_point now = std::chrono::system_clock::now()) const;

  // With all variables given as they are (an object); special tokens that are left out come from the checkpoint. For
  // checking tools: nothing is kept from overriding anything.
  std::string render_variables(const Json& variables, std::chrono::system_clock::time_point now) const;

 private:
  // Of templates by name; nullopt when there is none.
  static std::optional<ChatTemplate> choose(std::map<std::string, TemplateSource> sources, Json special_tokens,
                                            const std::string& given);

  ChatTemplate(jinja::Template main, Json special_tokens)
      : main_(std::move(main)), special_tokens_(std::move(special_tokens)) {}

  std::string render_all(const Json& variables, std::chrono::system_clock::time_point now) const;

  jinja::Template main_;
  std::optional<jinja::Template> with_tools_;
  Json special_tokens_;
};

}  // namespace sluice
