// Parses a template into its syntax tree.
#pragma once

#include <memory>
#include <string_view>

#include "chat/jinja/ast.h"

namespace sluice::jinja {

inline constexpr size_t kMaxSource = 1u << 20;  // bytes

// Throws Error(kInvalidRequest) that names the line.
std::unique_ptr<Program> parse(std::string_view source);

}  // namespace sluice::jinja
