// Fields of requests: one row each, with type, range, default and help. Validation and documentation are made from the
// rows; nothing else decides which fields a request may have. Endpoints list the groups of rows that they know
// (endpoint.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/field_path.h"
#include "server/fields.h"
#include "sluice/request.h"

namespace sluice::server {

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
  double min = 0, max = 0;              // inclusive range of numbers; no range when equal
  bool above_min = false;               // the range excludes min itself
  size_t min_items = 0, max_items = 0;  // items of arrays and objects; max_items 0: max_bytes alone limits them
  // Bytes of a string, of all strings of kStrings together, or else of the compact JSON text without escapes. 0 only
  // for scalars and for kTokenIds and kTokenBias, which max_items limits.
  size_t max_bytes = 0;
  bool required = false;
  std::string_view fallback = {};  // the default, for readers
  std::string_view neutral = {};   // kUnsupported: a JSON array of values that ask for nothing
  std::string_view help = {};      // kUnsupported: what to use instead ("Use 'max_tokens'"); may be empty
  // Called after the checks above; may throw ApiError.
  void (*set)(Fields& fields, const Json& value) = nullptr;
};

// The most fields of a request body.
inline constexpr size_t kMaxFields = 1024;

// Checks a request's fields against the rows and collects them. Throws ApiError for the first wrong one; unknown fields
// are added to `unknown`. Token ids must be below `vocab`. Takes time linear in the body.
void read_parameters(std::span<const std::span<const Parameter>> groups, const Json& body, int vocab, Fields& fields,
                     UnknownFields& unknown);

// Checks one value, which is not null, without storing it. Throws ApiError.
void check_parameter(const Parameter& row, const Json& value, int vocab);

// Check one value of a nested field. Errors name `path`. They throw ApiError (invalid_type, ..._value).
// Returns whether a value is this string. Unlike ==, it does not allocate: the JSON library compares noexcept with a
// copy, which would end the process where memory is short.
bool is_string(const Json& value, std::string_view text);
const std::string& expect_string(const Json& value, const FieldPath& path);
bool expect_boolean(const Json& value, const FieldPath& path);
const Json& expect_object(const Json& value, const FieldPath& path);
const Json& expect_array(const Json& value, const FieldPath& path, size_t min_items = 0, size_t max_items = 0);
int64_t expect_integer(const Json& value, const FieldPath& path, int64_t min, int64_t max);
TokenId expect_token_id(const Json& value, const FieldPath& path, int vocab);
// Expects an array of at least one token id.
std::vector<TokenId> expect_token_ids(const Json& value, const FieldPath& path, int vocab);

// Counts the bytes of the value's compact JSON text without escapes. Stops counting above `limit`.
size_t json_bytes(const Json& value, size_t limit);

// Cells of the documentation. Empty when there is nothing to say.
std::string type_text(const Parameter& row);
std::string range_text(const Parameter& row);
std::string items_text(const Parameter& row);     // most items
std::string size_text(const Parameter& row);      // most bytes
std::string accepted_text(const Parameter& row);  // kUnsupported: values that ask for nothing

}  // namespace sluice::server
