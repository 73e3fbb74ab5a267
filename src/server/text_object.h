// A text as llama.cpp's clients may write it: an object in place of a string.
#pragma once

#include <string>

#include "base/json.h"
#include "server/field_path.h"

namespace sluice::server {

// The text of {"prompt_string": "..."}, or of {"content": [{"type": "text", "text": "..."}, ...]}, whose parts follow
// each other. Throws ApiError that names the member: media is refused.
std::string text_of_object(const Json& object, const FieldPath& path);

}  // namespace sluice::server
