// An adapter as a part of a message to the ranks that compute a model together with this process.
#pragma once

#include <memory>

#include "lora/adapter.h"
#include "parallel/message.h"

namespace sluice {

// What read_adapter() has read, without what prepare_adapter() has made of it.
void write_adapter(MessageWriter& write, const Adapter& adapter);
// Throws Error(kInternal) if the rest of the message is not from write_adapter.
std::shared_ptr<Adapter> receive_adapter(MessageReader& read);

}  // namespace sluice
