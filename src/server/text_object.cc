#include "server/text_object.h"

#include "server/members.h"

namespace sluice::server {
namespace {

std::string text_of_parts(const Json& parts, const FieldPath& path) {
  expect_array(parts, path, 1, kMaxParts);
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const FieldPath where = path[i];
    expect_object(parts[i], where);
    const std::string& type = required_string(parts[i], "type", where);
    if (type != "text") {
      throw unsupported_parameter((where / "type").str(),
                                  "is not supported: models read text only. Accepted: \"text\"");
    }
    text += required_string(parts[i], "text", where);
  }
  return text;
}

}  // namespace

std::string text_of_object(const Json& object, const FieldPath& path) {
  const Json* content = member(object, "content");
  if (content == nullptr && member(object, "prompt_string") == nullptr) {
    throw invalid_type(path, "one of a string or an object with prompt_string or content", object);
  }
  for (const auto& [key, value] : object.items()) {
    const bool no_media = value.is_null() || (key == "multimodal_data" && value.empty());
    if (key == (content != nullptr ? "content" : "prompt_string") || no_media) continue;
    throw unsupported_parameter((path / key).str(), "is not supported: models read text only");
  }
  return content != nullptr ? text_of_parts(*content, path / "content")
                            : required_string(object, "prompt_string", path);
}

}  // namespace sluice::server
