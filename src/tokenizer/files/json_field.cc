// Typed access to the fields of a JSON file, with errors that name the field.
#include "tokenizer/files/json_field.h"

#include "tokenizer/unicode.h"

namespace sluice::tokenizer {

void Field::corrupt(std::string_view what) const {
  throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}: {}", *file_, path_.empty() ? "top level" : path_, what));
}

void Field::unsupported(std::string_view what) const {
  throw Error(ErrorCode::kUnsupportedModel,
              fmt::format("{}: {}: {}", *file_, path_.empty() ? "top level" : path_, what));
}

std::optional<Field> Field::find(std::string_view key) const {
  expect(json_->is_object(), "an object");
  const auto member = json_->find(std::string(key));
  if (member == json_->end() || member->is_null()) return std::nullopt;
  return Field(*member, *file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
}

Field Field::at(std::string_view key) const {
  auto field = find(key);
  if (!field) corrupt(fmt::format("\"{}\" is missing", key));
  return *std::move(field);
}

Field Field::element(size_t index) const { return Field((*json_)[index], *file_, fmt::format("{}[{}]", path_, index)); }

std::string_view Field::string() const {
  expect(json_->is_string(), "a string");
  return json_->get_ref<const std::string&>();
}

bool Field::boolean() const {
  expect(json_->is_boolean(), "true or false");
  return json_->get<bool>();
}

double Field::number() const {
  expect(json_->is_number(), "a number");
  return json_->get<double>();
}

int64_t Field::integer(int64_t low, int64_t high) const {
  expect(json_->is_number_integer(), "an integer");
  const bool too_big = json_->is_number_unsigned() && json_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (too_big || json_->get<int64_t>() < low || json_->get<int64_t>() > high) {
    corrupt(fmt::format("{} is out of range (expected {} to {})", json_->dump(), low, high));
  }
  return json_->get<int64_t>();
}

char32_t Field::character() const {
  const std::string_view text = string();
  if (text.empty() || code_point_at(text, 0).length != text.size()) corrupt("expected exactly one character");
  return code_point_at(text, 0).value;
}

}  // namespace sluice::tokenizer
