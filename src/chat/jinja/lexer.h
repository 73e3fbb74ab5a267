// Splits a template into tokens, like jinja2's lexer with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::jinja {

enum class TokenKind : uint8_t {
  kText,
  kOutputBegin,
  kOutputEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  uint32_t line;
  std::string text;  // strings are unescaped; numbers have no underscores
};

// Throws Error(kInvalidRequest) that names the line.
std::vector<Token> tokenize(std::string_view source);

[[noreturn]] void syntax_error(uint32_t line, const std::string& message);

}  // namespace sluice::jinja
