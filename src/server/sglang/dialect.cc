// The form of SGLang's errors.
#include "server/sglang/dialect.h"

namespace sluice::server {
namespace {

std::string sglang_error_body(const ApiError& error) {
  return dump_json({{"error", {{"message", error.message}, {"type", error.type}, {"code", error.status}}}});
}

}  // namespace

const Dialect kSglang{.name = "sglang",
                      .error_body = sglang_error_body,
                      .prefixes = {"/get_model_info", "/model_info", "/health_generate"}};

namespace {
const Registry<Dialect> registered_sglang{kSglang};
}

}  // namespace sluice::server
