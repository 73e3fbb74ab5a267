// OpenAI's limits on labels.
#include "server/openai/metadata.h"

#include <fmt/core.h>

#include "server/errors.h"
#include "server/openai/format.h"

namespace sluice::server {

const Json& checked_metadata(const Json& value) {
  constexpr size_t kMostOfKey = 64, kMostOfValue = 512;  // characters
  const FieldPath path = "metadata";
  for (const auto& [key, label] : value.items()) {
    if (const size_t length = count_characters(key); length > kMostOfKey) {
      throw ApiError{
          .message = fmt::format("Invalid 'metadata': the key '{}' is too long. Expected a key of at most {} "
                                 "characters, but got one of {}.",
                                 quotable(key), kMostOfKey, length),
          .param = path,
          .code = "string_above_max_length"};
    }
    const FieldPath inner = path / key;
    if (const size_t length = count_characters(expect_string(label, inner)); length > kMostOfValue) {
      throw ApiError{.message = fmt::format("Invalid '{}': string too long. Expected a string with maximum length {}, "
                                            "but got a string with length {} instead.",
                                            inner.str(), kMostOfValue, length),
                     .param = inner,
                     .code = "string_above_max_length"};
    }
  }
  return value;
}

}  // namespace sluice::server
