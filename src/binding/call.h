// A call of the server's machinery without HTTP: its fields and errors for programs that embed the engine.
#pragma once

#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/endpoint.h"
#include "sluice/engine.h"

namespace sluice::binding {

// A call whose model is the engine, which the caller keeps. Unknown fields are errors; it has no reply.
class DirectCall {
 public:
  explicit DirectCall(Engine& engine);
  server::Call& call() { return call_; }

  // Reads a JSON object. "model" may name the model or one of its adapters. Sampling parameters that it leaves out have
  // `defaults`.
  void read(std::string_view body, const std::vector<std::span<const server::Parameter>>& rows,
            const SamplingParams& defaults);
  void read(const Json& body, const std::vector<std::span<const server::Parameter>>& rows,
            const SamplingParams& defaults);

 private:
  server::Models models_;
  server::Call call_;
};

Json parse_body(std::string_view text);  // throws Error, ApiError unless it is an object

Error to_error(const server::ApiError& error);

// Runs work on a call. What the server throws becomes an Error.
template <class Work>
auto with_call(Engine& engine, const Work& work) {
  try {
    DirectCall direct(engine);
    return work(direct);
  } catch (const server::ApiError& error) {
    throw to_error(error);
  }
}

}  // namespace sluice::binding
