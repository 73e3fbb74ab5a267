// The id of a token.
#pragma once

#include <cstdint>

namespace sluice {

using TokenId = int32_t;

}  // namespace sluice
