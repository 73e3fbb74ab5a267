// Typed access to GGUF metadata.
#include <fmt/core.h>

#include <cmath>
#include <cstring>

#include "base/json.h"
#include "formats/gguf/file.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using Type = GgufValue::Type;

template <class T, class To>
To element(const GgufValue& value, uint64_t i) {
  T raw;
  std::memcpy(&raw, value.data + i * sizeof raw, sizeof raw);
  return static_cast<To>(raw);
}

// Reads element i of an array of integers, or the value itself. Returns false when it is not an integer or does not fit
// in a signed 64-bit integer.
bool to_integer(const GgufValue& v, uint64_t i, int64_t& to) {
  switch (v.type) {
    case Type::kUint8:
      return to = element<uint8_t, int64_t>(v, i), true;
    case Type::kInt8:
      return to = element<int8_t, int64_t>(v, i), true;
    case Type::kUint16:
      return to = element<uint16_t, int64_t>(v, i), true;
    case Type::kInt16:
      return to = element<int16_t, int64_t>(v, i), true;
    case Type::kUint32:
      return to = element<uint32_t, int64_t>(v, i), true;
    case Type::kInt32:
      return to = element<int32_t, int64_t>(v, i), true;
    case Type::kUint64:
    case Type::kInt64:
      to = element<int64_t, int64_t>(v, i);
      return v.type == Type::kInt64 || to >= 0;
    default:
      return false;
  }
}

bool to_number(const GgufValue& v, uint64_t i, double& to) {
  if (v.type == Type::kFloat32) return to = element<float, double>(v, i), true;
  if (v.type == Type::kFloat64) return to = element<double, double>(v, i), true;
  int64_t whole = 0;
  if (!to_integer(v, i, whole)) return false;
  to = static_cast<double>(whole);
  return true;
}

}  // namespace

void GgufMetadata::fail(std::string_view key, const std::string& message, ErrorCode code) const {
  throw Error(code, fmt::format("{}: metadata {}: {}", file, dump_json(std::string(key)), message));
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

std::optional<int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  int64_t out = 0;
  if (value->array || !to_integer(*value, 0, out)) fail(key, "expected an integer");
  return out;
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  double out = 0;
  if (value->array || !to_number(*value, 0, out) || !std::isfinite(out)) fail(key, "expected a finite number");
  return out;
}

std::optional<bool> GgufMetadata::boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->array || value->type != Type::kBool) fail(key, "expected a bool");
  return value->data[0] != std::byte{0};
}

std::optional<std::string_view> GgufMetadata::text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->array || value->type != Type::kString) fail(key, "expected a string");
  return value->texts[0];
}

std::vector<int64_t> GgufMetadata::integers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return {};
  std::vector<int64_t> out(value->array ? value->count : 0);
  for (uint64_t i = 0; i < out.size(); ++i) {
    if (!to_integer(*value, i, out[i])) fail(key, "expected an array of integers");
  }
  if (!value->array) fail(key, "expected an array of integers");
  return out;
}

std::vector<double> GgufMetadata::numbers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return {};
  std::vector<double> out(value->array ? value->count : 0);
  for (uint64_t i = 0; i < out.size(); ++i) {
    if (value->type == Type::kBool) {
      out[i] = std::to_integer<int>(value->data[i]);
    } else if (!to_number(*value, i, out[i])) {
      fail(key, "expected an array of numbers");
    }
  }
  if (!value->array) fail(key, "expected an array of numbers");
  return out;
}

const std::vector<std::string_view>& GgufMetadata::texts(std::string_view key) const {
  static const std::vector<std::string_view> kNone;
  const GgufValue* value = find(key);
  if (value == nullptr) return kNone;
  if (!value->array || value->type != Type::kString) fail(key, "expected an array of strings");
  return value->texts;
}

std::string_view GgufMetadata::required_text(std::string_view key) const {
  const auto value = text(key);
  if (!value) fail(key, "is missing", ErrorCode::kUnsupportedModel);
  return *value;
}

}  // namespace sluice
