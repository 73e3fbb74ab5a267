// A value inside a JSON file that knows its path, so that every error names the file and the field.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "sluice/error.h"

namespace sluice::tokenizer {

// Refers to the JSON value and to the file's name; both must outlive it. It costs little when there is no error: a path
// is built only for fields on the way down.
class Field {
 public:
  Field(const Json& json, const std::string& file, std::string path = {})
      : json_(&json), file_(&file), path_(std::move(path)) {}

  const Json& json() const { return *json_; }
  const std::string& file() const { return *file_; }

  // Throw Error(kCorruptFile) and Error(kUnsupportedModel) with the message "file: path: what".
  [[noreturn]] void corrupt(std::string_view what) const;
  [[noreturn]] void unsupported(std::string_view what) const;

  // Returns a member of an object; nullopt when it is absent or null. Throws if this is not an object.
  std::optional<Field> find(std::string_view key) const;
  // Returns a required member.
  Field at(std::string_view key) const;
  Field element(size_t index) const;

  std::string_view string() const;
  bool boolean() const;
  double number() const;
  int64_t integer(int64_t low, int64_t high) const;
  // Returns a string of exactly one character.
  char32_t character() const;

  bool boolean_or(std::string_view key, bool fallback) const {
    const auto field = find(key);
    return field ? field->boolean() : fallback;
  }

  // Calls f(Field) for each element of an array.
  template <class F>
  void for_each(F&& f) const {
    expect(json_->is_array(), "an array");
    for (size_t i = 0; i < json_->size(); ++i) f(element(i));
  }

  void expect(bool holds, std::string_view wanted) const {
    if (!holds) corrupt(fmt::format("expected {}, found {}", wanted, json_->type_name()));
  }

 private:
  const Json* json_;
  const std::string* file_;
  std::string path_;
};

}  // namespace sluice::tokenizer
