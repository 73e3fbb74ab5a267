// A batch as one message to the ranks that compute it together with this process. They run the same program, so numbers
// have this machine's form.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "batch/batch.h"

namespace sluice {

std::vector<std::byte> to_message(const Batch& batch);
// Throws Error(kInternal) if the message is not from to_message.
Batch from_message(std::span<const std::byte> message);

}  // namespace sluice
