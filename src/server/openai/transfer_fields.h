// vLLM's field kv_transfer_params: one server computes the prompt, and another one goes on with it
// (docs/scale-out.md, Prefill and decode apart).
#pragma once

#include <optional>
#include <span>

#include "server/endpoint.h"

namespace sluice::server {

struct TransferFields {
  std::optional<KvTransfer> transfer;  // its id is empty if the client names none
};

std::span<const Parameter> transfer_parameters();  // TransferFields

// Sets what the fields ask for. `prompt`: the index of the request among those of the call. Throws ApiError if an
// answer that names the prompt is to be streamed.
void apply_transfer(Call& call, Request& request, size_t prompt = 0);

// What the client passes on to the server that goes on with the prompt; null: none is to.
Json transfer_answer(Call& call);

}  // namespace sluice::server
