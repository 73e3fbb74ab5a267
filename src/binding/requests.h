// Bodies of OpenAI's API, as JSON texts, to requests for an engine. The fields, their ranges and the wordings of errors
// are those of the server.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sluice/engine.h"

namespace sluice::binding {

struct GenerationBody {
  Request request{};                  // with its prompt, unless there is a chat
  std::optional<ChatRequest> chat{};  // instead of `request`
  bool include_reasoning = true;      // the answer is to have what the model thought
};

// All of these throw Error: kInvalidRequest with the field at fault as `param`, kNotFound for an unknown "model".
// Fields that are not known are errors. "stream" changes nothing, because answers come in events. Thread-safe.

// A chat completion ("messages") or a text completion with one "prompt", which is a string or an array of token ids.
GenerationBody read_generation(Engine& engine, std::string_view body);

// The fields of a text completion without "prompt". `defaults` are the sampling parameters that the body leaves out.
Request read_sampling(Engine& engine, std::string_view body, const SamplingParams& defaults);

// Checks the fields of a text completion without an engine; ids of tokens may be any. Throws like read_sampling.
void check_sampling(std::string_view body);

// The fields of a chat completion that say what the template gets, as a prompt.
ChatPrompt read_conversation(Engine& engine, std::string_view body);

// Starts what was read. Throws what Engine::submit throws.
RequestId submit(Engine& engine, GenerationBody body, EventSink sink);

}  // namespace sluice::binding
