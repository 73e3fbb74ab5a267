// The form of Cohere's errors. Clients of servers that offer this API beside OpenAI's read "error" instead.
#include "server/cohere/dialect.h"

#include "server/openai/dialect.h"

namespace sluice::server {
namespace {

std::string cohere_error_body(const ApiError& error) {
  Json body = {{"message", error.message}};
  body.update(to_json(error));
  return dump_json(body);
}

}  // namespace

const Dialect kCohere{.name = "cohere", .error_body = cohere_error_body, .prefixes = {"/v2/embed"}};

namespace {
const Registry<Dialect> registered_cohere{kCohere};
}

}  // namespace sluice::server
