// The form of OpenAI's errors.
#include "server/openai/dialect.h"

namespace sluice::server {
namespace {

Json nullable(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string openai_error_body(const ApiError& error) { return dump_json(to_json(error)); }

}  // namespace

Json to_json(const ApiError& error) {
  return Json{{"error",
               {{"message", error.message},
                {"type", error.type},
                {"param", nullable(error.param)},
                {"code", nullable(error.code)}}}};
}

const Dialect kOpenAi{.name = "openai", .error_body = openai_error_body};

namespace {
const Registry<Dialect> registered_openai{kOpenAi};
}

}  // namespace sluice::server
