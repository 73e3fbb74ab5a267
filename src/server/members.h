// Members of nested objects in a request. Errors name their paths.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "server/errors.h"
#include "server/parameters.h"

namespace sluice::server {

// Adds the members that are not among `known` to `unknown`.
inline void note_unknown(const Json& object, const FieldPath& path, std::initializer_list<std::string_view> known,
                         UnknownFields& unknown) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) unknown.add(path / key);
  }
}

// The member, or null when it is missing or null.
inline const Json* member(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

inline const Json& required_member(const Json& object, std::string_view key, const FieldPath& path) {
  const Json* found = member(object, key);
  if (found == nullptr) throw missing_parameter(path / key);
  return *found;
}

inline const std::string& required_string(const Json& object, std::string_view key, const FieldPath& path) {
  return expect_string(required_member(object, key, path), path / key);
}

inline constexpr size_t kMaxParts = 16384;  // of a message, and items of a conversation

// The text of a message's content: a string, or an array of `least` or more parts. part_text(part, path, unknown) reads
// one.
template <class PartText>
std::string joined_text(const Json& content, const FieldPath& path, UnknownFields& unknown, size_t least,
                        PartText&& part_text) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw invalid_type(path, "one of a string or array of objects", content);
  expect_array(content, path, least, kMaxParts);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) text += part_text(content[i], path[i], unknown);
  return text;
}

}  // namespace sluice::server
