// Values of the engine as objects of Python, and its errors as exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include "channel.h"

namespace sluice::python {

// (key, last, cached tokens, choices, prompt logprobs or None, vectors or None, error or None)
// choices: (index, text, token ids, logprobs or None, finish reason or None, stop string or token or None)
// logprobs: for each token a list of (id, logprob, rank), first the token's own
// vectors: arrays of float32 of shape [width], which own the memory that the engine filled
// error: (message, field at fault)
nanobind::tuple to_python(Part part);

nanobind::list to_list(const std::vector<TokenId>& tokens);

// What models say about themselves.
nanobind::dict to_python(const ModelInfo& model);

// Registers sluice.RequestError in the module, and the translation of the engine's errors.
void add_errors(nanobind::module_& module);

}  // namespace sluice::python
