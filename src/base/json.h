// JSON values (nlohmann, keys in source order) and a parser with limits for untrusted text.
#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/json_fwd.h"

// The library's destructor moves all values below an array or object to a list that it allocates first, and so ends the
// process where memory is short. This one allocates nothing. It recurses as deep as the value is nested.
template <>
inline void nlohmann::ordered_json::json_value::destroy(value_t t) {
  const auto free = [](auto* value) {
    std::destroy_at(value);
    std::allocator<std::remove_pointer_t<decltype(value)>>().deallocate(value, 1);
  };
  switch (t) {
    case value_t::object:
      return free(object);
    case value_t::array:
      return free(array);
    case value_t::string:
      return free(string);
    case value_t::binary:
      return free(binary);
    default:
      return;
  }
}

// The library's comparison with a literal makes a value of it, which takes memory, and may not throw: where memory is
// short, it ends the process. This one allocates nothing.
namespace nlohmann {
inline bool operator==(const ordered_json& value, const char* text) {
  const auto* own = value.get_ptr<const ordered_json::string_t*>();
  return own != nullptr && *own == text;
}
inline bool operator!=(const ordered_json& value, const char* text) { return !(value == text); }
}  // namespace nlohmann

namespace sluice {

struct JsonLimits {
  int depth = 64;             // nesting depth of arrays and objects
  size_t values = 16u << 20;  // most values; texts, lists, objects and keys count as several
};

// Parses a whole text (RFC 8259: strict UTF-8, no trailing bytes, no NaN; a number beyond fp64 is an error). Duplicate
// keys in an object are an error. Time and memory are linear in the length of the text. Throws Error(kInvalidRequest)
// that states the problem and its byte offset.
Json parse_json(std::string_view text, const JsonLimits& limits = {});

// Reads and parses a checkpoint file. Throws Error(kCorruptFile) that names the file.
Json read_json_file(const std::string& path, const JsonLimits& limits = {});

// Returns compact text. Invalid UTF-8 inside strings becomes U+FFFD.
std::string dump_json(const Json& value);

}  // namespace sluice
