// What the endpoints of all dialects have in common on the way to the engine. A dialect fills these values; messages,
// tools and the choice of a tool are in the form of OpenAI's chat API.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/endpoint.h"
#include "sluice/context.h"

namespace sluice::server {

// Besides SamplingParams, which is a group of its own and starts with the model's defaults.
struct GenerationFields {
  int n = 1;
  bool searches = false;  // use_beam_search
  std::optional<int> num_beams;
  std::optional<double> length_penalty;
  std::optional<EarlyStopping> early_stopping;
  int num_beam_groups = 1;
  double diversity_penalty = 0.0;
  std::optional<bool> context_shift;
  std::optional<int> context_keep;
  int priority = 0;
  std::string cache_salt;
  std::string session;
  int session_ttl = 0;  // seconds; 0: the engine's default
  bool stream = false;
  Json stream_options;  // object or null
  bool include_usage = false;
  bool continuous_usage = false;
  bool has_max_tokens = false;                      // the client gave it; else it is the model's default
  std::optional<int> n_predict;                     // llama.cpp's: it gives way to the context; -1: up to it
  std::string_view max_tokens_name = "max_tokens";  // the request's field
  std::optional<int> truncate_prompt;
  bool keeps_start = false;  // truncation leaves the first tokens, not the last ones
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  std::optional<GrammarSpec> grammar;
  const Json* response_format = nullptr;  // as the client wrote it
};

// What the request calls its fields of tools, for errors.
struct ToolNames {
  std::string_view tools = "tools";
  std::string_view choice = "tool_choice";
  std::string_view chosen = "tool_choice.function.name";
  std::string_view parallel = "parallel_tool_calls";
};

struct ConversationFields {
  Json messages;         // array, as the client wrote it, or null
  Json tools;            // array or null
  Json tool_choice;      // "none", "auto", "required", an object that names a function, or null
  Json template_kwargs;  // object or null
  ToolNames names;
  std::optional<bool> thinks;                     // what the template is asked for; none: its own default
  std::string effort;                             // how much the model is to think, or empty
  std::optional<int> thinking_budget;             // tokens of thought
  std::string_view thinking_param, effort_param;  // the request's fields of them, named in a warning when the model
                                                  // cannot do what they ask for; empty: no warning
  bool parallel_tool_calls = true;
  std::optional<bool> add_generation_prompt;  // none: true, unless the last message is continued
  bool continue_final_message = false;
};

struct SpecialTokenFields {
  std::optional<bool> add_special_tokens;
};

// Throws ApiError(unsupported_task) unless the model generates text.
void expect_generates(const Call& call);
[[noreturn]] void refuse_task(const Call& call, std::string_view what);  // "give embeddings"

// Rules between fields of generation; n_predict becomes max_tokens. `echo`: max_tokens may be 0. Throws ApiError.
void check_generation(Call& call, bool echo);

// The grammar of a JSON schema in a request. Objects that declare properties have no others, unless the schema says so.
GrammarSpec schema_grammar(std::string schema, const FieldPath& path);

void set_adapter(Request& request, const ScaledAdapter& adapter);

// A request for the engine with everything but its prompt.
Request base_request(Call& call);

// Whether the length of the request's answer gives way to the context: it is no max_tokens of the client. llama.cpp's
// n_predict gives way, too, unless the context is shifted.
bool gives_way(Call& call, const Request& request);

// An answer with the log probabilities of long prompts takes far more memory than the prompts. Throws ApiError that
// names `param` if the requests ask for too many.
void check_prompt_logprobs(const std::vector<Request>& requests, const std::string& param);

// Tokens of a text. Throws Error(context_length_exceeded), see check_text_length.
std::vector<TokenId> tokenize_text(const Call& call, const std::string& text, bool add_special_tokens,
                                   const std::string& param, size_t accepted = kBytesAlways);

// The conversation as the engine takes it. `with_tools`: the template is told of the tools.
ChatPrompt chat_prompt(Call& call, bool with_tools);
// The conversation through the chat template and the tokenizer.
std::vector<TokenId> tokenize_chat(Call& call, bool with_tools);
// The next turn of the conversation. Its answer has the grammar that the request's fields and tool_choice demand.
ChatRequest chat_request(Call& call);

// Equal as long as answers are made the same way: "fp_0123456789ab".
std::string fingerprint(const ModelInfo& model);

}  // namespace sluice::server
