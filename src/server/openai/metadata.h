// The field "metadata" of OpenAI's API: labels that clients give to what is stored.
#pragma once

#include <string_view>

#include "server/parameters.h"

namespace sluice::server {

inline constexpr size_t kMostLabels = 16;

constexpr Parameter metadata_row(std::string_view help, void (*set)(Fields& fields, const Json& value)) {
  return {.name = "metadata",
          .type = Parameter::Type::kObject,
          .max_items = kMostLabels,
          .max_bytes = 64 << 10,
          .fallback = "{}",
          .help = help,
          .set = set};
}

// The value, if its keys have at most 64 characters and its values are texts of at most 512. Throws ApiError.
const Json& checked_metadata(const Json& value);

}  // namespace sluice::server
