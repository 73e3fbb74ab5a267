// The goldens' vectors: what Hugging Face's and other libraries make of texts.
#pragma once

#include <string>

#include "base/json.h"

namespace sluice {

// Returns a line of vectors.jsonl with all of its fields. A field that would repeat another one is left out there.
inline Json parse_vector(const std::string& line) {
  Json vector = parse_json(line);
  const auto fill = [&](const char* field, const char* same) {
    if (!vector.contains(field)) vector[field] = Json(vector[same]);
  };
  fill("ids_no_special", "ids"), fill("decoded", "text"), fill("decoded_skip_special", "decoded");
  return vector;
}

}  // namespace sluice
