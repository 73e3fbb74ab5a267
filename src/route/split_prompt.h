// One request as two: one server computes its prompt, and another one goes on with it (docs/route.md, Prefill and
// decode apart).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice::route {

struct SplitBody {
  std::string prefill;  // computes the prompt and one token
  std::string decode;   // the client's request, which goes on with the prompt
};

// Where the server that computes the prompt gives its keys and values.
struct TransferAddress {
  std::string host;
  int port = 0;
};

// Splits the JSON body of a request to /v1/completions or /v1/chat/completions. nullopt: it is no object, it has
// kv_transfer_params already, or it has a prompt of vectors.
std::optional<SplitBody> split_body(std::string_view body, const TransferAddress& address, const std::string& id);

// Reads where a server gives keys and values from the answer of its /health. nullopt: nowhere.
std::optional<TransferAddress> transfer_address(std::string_view health);

}  // namespace sluice::route
