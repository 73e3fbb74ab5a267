// Parses a template into its syntax tree.
#pragma once

#include <memory>
#include <string_view>

#include "chat/jinja_ast.h"

namespace sluice::jinja {

inline constexpr int kMaxNesting = 100;        // brackets, tags and prefix operators inside each other
inline constexpr uint32_t kMaxExprDepth = 250;  // levels of an expression, chains of attributes and filters included
inline constexpr size_t kMaxSource = 1u << 20;  // bytes

// Throws Error(kInvalidRequest) that names the line.
std::unique_ptr<Program> parse(std::string_view source);

}  // namespace sluice::jinja
