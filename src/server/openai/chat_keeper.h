// Chat completions that the request asks to store.
#pragma once

#include <functional>

#include "base/json.h"
#include "server/endpoint.h"

namespace sluice::server {

struct ChatStoreFields {
  bool store = false;
  const Json* metadata = nullptr;  // an object
};

// Keeps a whole chat completion, and calls `done` as AnswerFormat::keep says.
using ChatKeeper = std::function<void(const Json& completion, Kept done)>;

// Empty if the request does not ask for it. Throws ApiError if the store fails.
ChatKeeper chat_keeper(Call& call);

}  // namespace sluice::server
