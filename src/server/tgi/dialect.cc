// The form of TGI's errors, whose clients tell them apart by status and type.
#include "server/tgi/dialect.h"

namespace sluice::server {
namespace {

std::string_view tgi_error_type(int status) {
  switch (status) {
    case 500:
      return "generation";
    case 503:
      return "overloaded";
    default:
      return "validation";
  }
}

std::string tgi_error_body(const ApiError& error) {
  return dump_json({{"error", error.message}, {"error_type", tgi_error_type(error.status)}});
}

int tgi_status(const ApiError& error) {
  if (error.status == 400) return 422;
  if (error.status == 500) return 424;
  return error.status == 503 ? 429 : error.status;
}

}  // namespace

const Dialect kTgi{.name = "tgi",
                   .error_body = tgi_error_body,
                   .status = tgi_status,
                   .prefixes = {"/generate", "/info", "/chat_tokenize"}};

namespace {
const Registry<Dialect> registered_tgi{kTgi};
}

}  // namespace sluice::server
