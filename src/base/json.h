// JSON values (nlohmann, keys in source order) and a parser with limits for untrusted text.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json_fwd.h"

namespace sluice {

struct JsonLimits {
  int depth = 64;             // nesting depth of arrays and objects
  size_t values = 16u << 20;  // total number of values, keys not counted
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
