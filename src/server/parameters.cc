// Checks values against rows, and prints rows for documentation.
#include "server/parameters.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "server/errors.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

[[noreturn]] void out_of_range(const FieldPath& field, std::string_view kind, bool above, std::string_view bound,
                               std::string_view got) {
  const std::string path = field;
  throw ApiError{.message = fmt::format("Invalid '{}': {} {} {} value. Expected a value {}, but got {} instead.", path,
                                        kind, above ? "above" : "below", above ? "maximum" : "minimum", bound, got),
                 .param = path,
                 .code = fmt::format("{}_{}_value", kind, above ? "above_max" : "below_min")};
}

void check_number(const Json& value, const FieldPath& path, double min, double max, bool above_min) {
  if (!value.is_number()) throw invalid_type(path, "a decimal", value);
  const double number = value.get<double>();
  if (min == max) return;  // no range
  if (number > max) out_of_range(path, "decimal", true, fmt::format("<= {}", max), dump_json(value));
  if (above_min ? number <= min : number < min) {
    out_of_range(path, "decimal", false, fmt::format("{} {}", above_min ? ">" : ">=", min), dump_json(value));
  }
}

void check_integer(const Json& value, const FieldPath& path, double min, double max) {
  // Ranges are doubles: 2^63 stands for the largest int64.
  const auto bound = [](double b) { return b >= 0x1p63 ? INT64_MAX : static_cast<int64_t>(b); };
  expect_integer(value, path, bound(min), bound(max));
}

void check_items(const Json& value, const FieldPath& path, size_t min, size_t max) {
  const std::string_view kind = value.is_object() ? "object" : "array";
  if (value.size() < min) {
    throw ApiError{.message = fmt::format("Invalid '{0}': empty {1}. Expected an {1} with minimum length {2}, but got "
                                          "an empty {1} instead.",
                                          path.str(), kind, min),
                   .param = path,
                   .code = fmt::format("empty_{}", kind)};
  }
  if (max > 0 && value.size() > max) {
    throw ApiError{.message = fmt::format("Invalid '{0}': {1} too long. Expected an {1} with maximum length {2}, but "
                                          "got an {1} with length {3} instead.",
                                          path.str(), kind, max, value.size()),
                   .param = path,
                   .code = fmt::format("{}_above_max_length", kind)};
  }
}

size_t limit_of(const Parameter& row, int vocab) {
  return row.max_items == Parameter::kVocabulary ? static_cast<size_t>(vocab) : row.max_items;
}

// Bytes that count towards max_bytes.
size_t counted_bytes(const Parameter& row, const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().size();
  if (row.type != Type::kStrings) return json_bytes(value, row.max_bytes);
  size_t bytes = 0;
  for (const Json& text : value) bytes += text.get_ref<const std::string&>().size();
  return bytes;
}

void check_bytes(const Parameter& row, const Json& value, const FieldPath& path) {
  if (row.max_bytes == 0) return;
  const size_t bytes = counted_bytes(row, value);
  if (bytes <= row.max_bytes) return;
  if (value.is_string()) {
    throw ApiError{
        .message = fmt::format("Invalid '{}': string too long. Expected a string with maximum length {}, but "
                               "got a string with length {} instead.",
                               path.str(), row.max_bytes, bytes),
        .param = path,
        .code = "string_above_max_length"};
  }
  const std::string_view kind = value.is_object() ? "object" : "array";
  throw ApiError{.message = fmt::format("Invalid '{}': {} too large. Expected at most {} bytes of {}.", path.str(),
                                        kind, row.max_bytes, row.type == Type::kStrings ? "strings" : "JSON text"),
                 .param = path,
                 .code = fmt::format("{}_above_max_size", kind)};
}

// An error that names all of the tokens, unless there are none.
void refuse_tokens(const std::vector<std::string>& tokens, const FieldPath& path, int vocab) {
  constexpr size_t kMostNames = 16;
  if (tokens.empty()) return;
  if (tokens.size() == 1) {
    const FieldPath inner = path / tokens[0];
    throw invalid_value(inner, fmt::format("Invalid '{}': token id {} is not in the vocabulary of {} tokens.",
                                           inner.str(), quotable(tokens[0]), vocab));
  }
  std::string names;
  for (size_t i = 0; i < std::min(tokens.size(), kMostNames); ++i) {
    if (i > 0) names += ", ";
    names += quotable(tokens[i]);
  }
  if (tokens.size() > kMostNames) names += ", ...";
  throw invalid_value(path, fmt::format("Invalid '{}': token ids {} are not in the vocabulary of {} tokens.",
                                        path.str(), names, vocab));
}

void check_token_bias(const Parameter& row, const Json& value, const FieldPath& path, int vocab) {
  expect_object(value, path);
  check_items(value, path, row.min_items, row.max_items);
  std::vector<std::string> outside;  // of the vocabulary
  for (const auto& [key, bias] : value.items()) {
    const FieldPath inner = path / key;
    TokenId id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error == std::errc::invalid_argument || (error == std::errc() && end != key.data() + key.size())) {
      throw invalid_value(inner, fmt::format("Invalid '{}': '{}' is not a token id.", path.str(), quotable(key)));
    }
    if (error != std::errc() || id < 0 || id >= vocab) outside.push_back(key);
    check_number(bias, inner, row.min, row.max, false);
  }
  refuse_tokens(outside, path, vocab);
}

void check_unsupported(const Parameter& row, const Json& value) {
  if (!row.neutral.empty()) {
    for (const Json& neutral : parse_json(row.neutral)) {
      if (neutral == value) return;
    }
  }
  throw unsupported_parameter(
      std::string(row.name),
      fmt::format("is not supported. Accepted: {}{}{}", accepted_text(row), row.help.empty() ? "" : ". ", row.help));
}

void check(const Parameter& row, const Json& value, const FieldPath& path, int vocab) {
  switch (row.type) {
    case Type::kBoolean:
      expect_boolean(value, path);
      break;
    case Type::kInteger:
      check_integer(value, path, row.min, row.max);
      break;
    case Type::kNumber:
      check_number(value, path, row.min, row.max, row.above_min);
      break;
    case Type::kString:
      expect_string(value, path);
      break;
    case Type::kObject:
      expect_object(value, path);
      check_items(value, path, row.min_items, row.max_items);
      break;
    case Type::kArray:
      expect_array(value, path, row.min_items, row.max_items);
      break;
    case Type::kStrings:
      if (value.is_string()) break;
      if (!value.is_array()) throw invalid_type(path, "one of a string or array of strings", value);
      check_items(value, path, row.min_items, row.max_items);
      for (size_t i = 0; i < value.size(); ++i) expect_string(value[i], path[i]);
      break;
    case Type::kTokenIds:
      expect_array(value, path, row.min_items, limit_of(row, vocab));
      for (size_t i = 0; i < value.size(); ++i) expect_token_id(value[i], path[i], vocab);
      break;
    case Type::kTokenBias:
      check_token_bias(row, value, path, vocab);
      break;
    case Type::kUnsupported:
      check_unsupported(row, value);
      break;
    case Type::kAny:
      break;
  }
  if (row.type != Type::kUnsupported) check_bytes(row, value, path);
}

const Parameter* find_row(std::span<const std::span<const Parameter>> groups, std::string_view name) {
  for (const std::span<const Parameter> group : groups) {
    for (const Parameter& row : group) {
      if (row.name == name) return &row;
    }
  }
  return nullptr;
}

}  // namespace

// JSON has one type of numbers: 5.0 is an integer. Above 2^53, a decimal does not tell which.
static bool is_whole(const Json& value) {
  if (!value.is_number_float()) return value.is_number_integer();
  const double number = value.get<double>();
  return std::abs(number) <= 0x1p53 && std::trunc(number) == number;
}

bool is_string(const Json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

const std::string& expect_string(const Json& value, const FieldPath& path) {
  if (!value.is_string()) throw invalid_type(path, "a string", value);
  return value.get_ref<const std::string&>();
}

bool expect_boolean(const Json& value, const FieldPath& path) {
  if (!value.is_boolean()) throw invalid_type(path, "a boolean", value);
  return value.get<bool>();
}

const Json& expect_object(const Json& value, const FieldPath& path) {
  if (!value.is_object()) throw invalid_type(path, "an object", value);
  return value;
}

const Json& expect_array(const Json& value, const FieldPath& path, size_t min_items, size_t max_items) {
  if (!value.is_array()) throw invalid_type(path, "an array", value);
  check_items(value, path, min_items, max_items);
  return value;
}

int64_t expect_integer(const Json& value, const FieldPath& path, int64_t min, int64_t max) {
  if (!is_whole(value)) throw invalid_type(path, "an integer", value);
  const bool beyond_int64 = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (beyond_int64 || value.get<int64_t>() > max) {
    out_of_range(path, "integer", true, fmt::format("<= {}", max), dump_json(value));
  }
  if (value.get<int64_t>() < min) out_of_range(path, "integer", false, fmt::format(">= {}", min), dump_json(value));
  return value.get<int64_t>();
}

TokenId expect_token_id(const Json& value, const FieldPath& path, int vocab) {
  if (!value.is_number_integer()) throw invalid_type(path, "a token id", value);
  const bool inside = value.is_number_unsigned() ? value.get<uint64_t>() < static_cast<uint64_t>(vocab)
                                                 : value.get<int64_t>() >= 0 && value.get<int64_t>() < vocab;
  if (!inside) {
    throw invalid_value(path, fmt::format("Invalid '{}': token id {} is not in the vocabulary of {} tokens.",
                                          path.str(), dump_json(value), vocab));
  }
  return value.get<TokenId>();
}

std::vector<TokenId> expect_token_ids(const Json& value, const FieldPath& path, int vocab) {
  std::vector<TokenId> tokens;
  tokens.reserve(expect_array(value, path, 1).size());
  for (size_t i = 0; i < value.size(); ++i) tokens.push_back(expect_token_id(value[i], path[i], vocab));
  return tokens;
}

size_t json_bytes(const Json& value, size_t limit) {
  if (value.is_string()) return value.get_ref<const std::string&>().size() + 2;
  if (!value.is_structured()) return dump_json(value).size();
  size_t bytes = 2;
  for (auto it = value.begin(); it != value.end() && bytes <= limit; ++it) {
    bytes += json_bytes(*it, limit - bytes) + 1;
    if (value.is_object()) bytes += it.key().size() + 3;
  }
  return bytes;
}

void check_parameter(const Parameter& row, const Json& value, int vocab) { check(row, value, row.name, vocab); }

void read_parameters(std::span<const std::span<const Parameter>> groups, const Json& body, int vocab, Fields& fields,
                     UnknownFields& unknown) {
  if (body.size() > kMaxFields) {
    throw ApiError{.message = fmt::format("Too many fields. Expected at most {} fields in a request, but got {}.",
                                          kMaxFields, body.size()),
                   .code = "object_above_max_length"};
  }
  for (const auto& [key, value] : body.items()) {
    const Parameter* row = find_row(groups, key);
    if (row == nullptr) {
      unknown.add(key);
      continue;
    }
    if (value.is_null()) continue;  // as if left out
    check_parameter(*row, value, vocab);
    if (row->set != nullptr) row->set(fields, value);
  }
  for (const std::span<const Parameter> group : groups) {
    for (const Parameter& row : group) {
      const auto found = row.required ? body.find(row.name) : body.end();
      if (row.required && (found == body.end() || found->is_null())) throw missing_parameter(std::string(row.name));
    }
  }
}

std::string type_text(const Parameter& row) {
  switch (row.type) {
    case Type::kBoolean:
      return "boolean";
    case Type::kInteger:
      return "integer";
    case Type::kNumber:
      return "number";
    case Type::kString:
      return "string";
    case Type::kObject:
      return "object";
    case Type::kArray:
      return "array";
    case Type::kStrings:
      return "string or strings";
    case Type::kTokenIds:
      return "token ids";
    case Type::kTokenBias:
      return "token ids to numbers";
    case Type::kUnsupported:
      return "unsupported";
    case Type::kAny:
      return "several";
  }
  return {};
}

static std::string bytes_text(size_t bytes) {
  if (bytes % (1u << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  if (bytes % (1u << 10) == 0) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} bytes", bytes);
}

std::string range_text(const Parameter& row) {
  if (row.min == row.max) return {};
  const auto bound = [](double b) {
    if (b >= 0x1p63) return std::string("2^63-1");
    if (b <= -0x1p63) return std::string("-2^63");
    if (b == 2147483647) return std::string("2^31-1");
    if (b == -2147483647) return std::string("-2^31+1");
    return fmt::format("{}", b);
  };
  return fmt::format("{}{} to {}", row.above_min ? "above " : "", bound(row.min), bound(row.max));
}

std::string items_text(const Parameter& row) {
  if (row.max_items == Parameter::kVocabulary) return "the vocabulary";
  return row.max_items > 0 ? std::to_string(row.max_items) : std::string();
}

std::string size_text(const Parameter& row) { return row.max_bytes > 0 ? bytes_text(row.max_bytes) : std::string(); }

std::string accepted_text(const Parameter& row) {
  std::string text = "null";
  if (row.neutral.empty()) return text;
  for (const Json& value : parse_json(row.neutral)) text += " or " + dump_json(value);
  return text;
}

}  // namespace sluice::server
