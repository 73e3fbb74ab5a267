// The table of request fields: one row each, with type, range, default and the routes that know it. Validation and
// documentation are made from it; nothing else decides which field a request may have.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/field_path.h"
#include "sluice/request.h"

namespace sluice::server {

enum Endpoint : unsigned {
  kChat = 1,
  kCompletions = 2,
  kTokenize = 4,
  kDetokenize = 8,
  kEmbeddings = 16,
  kRerank = 32,
  kScores = 64
};
inline constexpr unsigned kGeneration = kChat | kCompletions;
inline constexpr unsigned kText = kGeneration | kTokenize;
inline constexpr unsigned kPooling = kEmbeddings | kRerank | kScores;
inline constexpr unsigned kAll = kText | kDetokenize | kPooling;

// A request's fields after validation. Fields that were left out or null keep these defaults.
struct RequestFields {
  std::string model;
  Json messages;                // array, as the client wrote it
  Json prompt;                  // string, or array in one of the forms of /v1/completions
  std::vector<TokenId> tokens;  // /detokenize
  SamplingParams sampling;
  int n = 1;
  int best_of = 0;  // 0: not given
  int priority = 0;
  std::string cache_salt;
  bool stream = false;
  Json stream_options;  // object or null
  bool include_usage = false;
  bool continuous_usage = false;
  bool has_max_tokens = false, has_max_completion_tokens = false;
  bool want_logprobs = false;  // chat
  int top_logprobs = -1;       // chat; -1: not given
  bool echo = false;
  std::optional<bool> add_special_tokens;
  bool add_generation_prompt = true;
  Json template_kwargs;  // object or null
  Json tools;            // array or null
  Json tool_choice;      // "none", "auto" or null
  bool return_token_strs = false;
  // Vectors and scores
  Json input;           // /v1/embeddings: in one of its forms
  bool base64 = false;  // how vectors are written
  int dimensions = 0;   // 0: all
  int truncate = 0;     // most tokens of a text, -1: the model's limit, 0: longer ones are errors
  std::optional<bool> normalize;
  std::optional<std::string> prompt_name;
  std::string query;             // rerank
  Json documents;                // rerank
  int top_n = 0;                 // rerank; 0: all
  bool return_documents = true;  // rerank
  Json text_1, text_2;           // score
  std::optional<bool> use_activation;
};

struct Parameter {
  enum class Type {
    kBoolean,
    kInteger,
    kNumber,
    kString,
    kObject,
    kArray,
    kStrings,      // a string or an array of strings
    kTokenIds,     // an array of token ids
    kTokenBias,    // an object of token ids to numbers
    kAny,          // `set` checks the type
    kUnsupported,  // known, and refused by name unless the value asks for nothing
  };
  static constexpr size_t kVocabulary = static_cast<size_t>(-1);  // as many items as the vocabulary has tokens

  std::string_view name = {};
  Type type = Type::kAny;
  unsigned endpoints = kGeneration;
  double min = 0, max = 0;              // of numbers, both inclusive unless above_min; no range when equal
  bool above_min = false;               // the range excludes min itself
  size_t min_items = 0, max_items = 0;  // of arrays and objects; max_items 0: only max_bytes limits them
  // Of strings: bytes; of kStrings: bytes of all strings together; of others: bytes of compact JSON text, in which
  // strings count without escapes. 0 only for scalars and for kTokenIds and kTokenBias, which max_items limits.
  size_t max_bytes = 0;
  bool required = false;
  std::string_view fallback = {};  // the default, for readers
  std::string_view neutral = {};   // kUnsupported: a JSON array of values that ask for nothing
  std::string_view help = {};      // kUnsupported: what to use instead ("Use 'max_tokens'"); may be empty
  // Called after the checks above; may throw ApiError.
  void (*set)(RequestFields& fields, const Json& value) = nullptr;
};

std::span<const Parameter> parameters();

// Fields of a request body, at most.
inline constexpr size_t kMaxFields = 1024;

// Checks a request's fields against the table and collects them, starting from `fields`. Throws ApiError for the first
// wrong one; unknown fields are added to `unknown`. Token ids must be below `vocab`. Takes time linear in the body.
void read_parameters(Endpoint endpoint, const Json& body, int vocab, RequestFields& fields, UnknownFields& unknown);

// Checks of one value, for nested fields. `path` is what errors name. Throw ApiError (invalid_type, ..._value).
const std::string& expect_string(const Json& value, const FieldPath& path);
bool expect_boolean(const Json& value, const FieldPath& path);
const Json& expect_object(const Json& value, const FieldPath& path);
const Json& expect_array(const Json& value, const FieldPath& path, size_t min_items = 0, size_t max_items = 0);
int64_t expect_integer(const Json& value, const FieldPath& path, int64_t min, int64_t max);
TokenId expect_token_id(const Json& value, const FieldPath& path, int vocab);
// An array of at least one token id.
std::vector<TokenId> expect_token_ids(const Json& value, const FieldPath& path, int vocab);

// Bytes of the value's compact JSON text, strings without escapes. Stops counting above `limit`.
size_t json_bytes(const Json& value, size_t limit);

// The table as Markdown, for docs/.
std::string parameters_markdown();

}  // namespace sluice::server
