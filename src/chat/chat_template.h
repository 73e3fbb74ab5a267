// A checkpoint's chat template: turns messages and tools into the text that the model continues.
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
  Json tools;      // array of objects; null if there are none
  Json documents;  // array of objects; null if there are none
  bool add_generation_prompt = true;
  // The text ends with the content of the last message, which must be a text. Not with add_generation_prompt.
  bool continue_final_message = false;
  Json kwargs;  // the request's chat_template_kwargs (further variables); null or an object
};

// A template's source, and the file to name in errors.
struct TemplateSource {
  std::string text;
  std::string file;
};

// Immutable: any number of threads may render at the same time.
class ChatTemplate {
 public:
  // Returns the template of a checkpoint folder: chat_template.jinja, else "chat_template" of tokenizer_config.json (a
  // string, or a list of {name, template}). Further templates come from additional_chat_templates/*.jinja; the one
  // named "tool_use" serves requests with tools. Returns nullopt if the folder has none. Throws Error(kCorruptFile)
  // that names the file. If `file` is given, that is the template, and the folder only gives the special tokens: a
  // Jinja file, a template in one line, or a name (builtin_template()).
  static std::optional<ChatTemplate> from_folder(const std::string& folder, const std::string& file = {});

  // Like from_folder, but from the text of a tokenizer_config.json stored elsewhere; `file` names it in errors.
  static std::optional<ChatTemplate> from_config(const std::string& config, const std::string& name,
                                                 const std::string& file = {});

  // `special_tokens` is an object of variables like bos_token. Throws Error(kInvalidRequest); see jinja::Template.
  static ChatTemplate from_source(std::string_view source, Json special_tokens);

  // Throws Error(kInvalidRequest) if kwargs has a key that must not be overridden (param "chat_template_kwargs"), or if
  // the template refuses the input.
  std::string render(const ChatInput& input,
                     std::chrono::system_clock::time_point now = std::chrono::system_clock::now()) const;

  // The source of the template for requests with tools.
  const std::string& source() const { return source_; }

  // Whether the text lacks the tokens that the tokenizer puts before every text. A checkpoint's template writes them.
  bool lacks_first_tokens() const { return builtin_; }

  // Whether the source uses a variable of that name, or has a string of that text in its code.
  bool names_variable(std::string_view name) const;
  bool has_string(std::string_view text) const;

  // Renders with exactly the given variables (an object); missing special tokens come from the checkpoint. Meant for
  // test tools: the variables may override anything.
  std::string render_variables(const Json& variables, std::chrono::system_clock::time_point now) const;

 private:
  // Chooses among templates by name; nullopt if there is none.
  static std::optional<ChatTemplate> choose(std::map<std::string, TemplateSource> sources, Json special_tokens,
                                            const std::string& given);

  ChatTemplate(jinja::Template main, Json special_tokens, std::string source)
      : main_(std::move(main)), special_tokens_(std::move(special_tokens)), source_(std::move(source)) {}

  std::string render_unfinished(const ChatInput& input, std::chrono::system_clock::time_point now) const;
  std::string render_all(const Json& variables, std::chrono::system_clock::time_point now) const;

  jinja::Template main_;
  std::optional<jinja::Template> with_tools_;
  Json special_tokens_;
  std::string source_;
  bool builtin_ = false;
};

}  // namespace sluice
