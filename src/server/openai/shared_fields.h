// Fields that several endpoints of OpenAI's dialect have, and what they have in common on the way to the engine.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/endpoint.h"
#include "server/openai/dialect.h"
#include "sluice/context.h"

namespace sluice::server {

// Bounds of text fields, in bytes.
inline constexpr size_t kLabelBytes = 1 << 10;   // names, salts, small options
inline constexpr size_t kTextBytes = 8 << 20;    // one text: about two million tokens
inline constexpr size_t kTextsBytes = 16 << 20;  // several texts, or their token ids
inline constexpr double kIntMax = 2147483647;

// Groups of rows. The field "model" comes in two groups: required, or else the first model.
std::span<const Parameter> model_parameter();
std::span<const Parameter> optional_model_parameter();
std::span<const Parameter> generation_parameters();    // SamplingParams, GenerationFields
std::span<const Parameter> conversation_parameters();  // ConversationFields
std::span<const Parameter> special_token_parameter();  // SpecialTokenFields
std::span<const Parameter> label_parameter();          // "user", which changes nothing
std::span<const Parameter> foreign_parameters();       // fields of other servers, refused by name

// A field that is refused unless its value is null or one of `neutral`, a JSON array. `instead` is a hint like "Use
// 'seed'".
constexpr Parameter refused(std::string_view name, std::string_view neutral = {}, std::string_view instead = {}) {
  return {.name = name, .type = Parameter::Type::kUnsupported, .neutral = neutral, .help = instead};
}

// Besides SamplingParams, which is a group of its own and starts with the model's defaults.
struct GenerationFields {
  int n = 1;
  int priority = 0;
  std::string cache_salt;
  bool stream = false;
  Json stream_options;  // object or null
  bool include_usage = false;
  bool continuous_usage = false;
  bool has_max_tokens = false;  // the client gave it; else it is the model's default
  std::optional<GrammarSpec> grammar;
};

struct ConversationFields {
  Json messages;         // array, as the client wrote it, or null
  Json tools;            // array or null
  Json template_kwargs;  // object or null
  bool add_generation_prompt = true;
};

struct SpecialTokenFields {
  std::optional<bool> add_special_tokens;
};

// Throws ApiError(unsupported_task) unless the model generates text.
void expect_generates(const Call& call);
[[noreturn]] void refuse_task(const Call& call, std::string_view what);  // "give embeddings"

// Rules between fields of generation. `echo`: max_tokens may be 0. Throws ApiError.
void check_generation(Call& call, bool echo);

// A request for the engine with everything but its prompt.
Request base_request(Call& call);

// Tokens of a text. Throws Error(context_length_exceeded), see check_text_length.
std::vector<TokenId> tokenize_text(const Call& call, const std::string& text, bool add_special_tokens,
                                   const std::string& param, size_t accepted = kBytesAlways);

// The conversation as the engine takes it. `with_tools`: the template is told of the tools.
ChatPrompt chat_prompt(Call& call, bool with_tools);
// The conversation through the chat template and the tokenizer.
std::vector<TokenId> tokenize_chat(Call& call, bool with_tools);

// Equal as long as answers are made the same way: "fp_0123456789ab".
std::string fingerprint(const ModelInfo& model);

}  // namespace sluice::server
