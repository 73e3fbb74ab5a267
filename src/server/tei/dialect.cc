// The form of TEI's errors, whose clients tell them apart by status and type.
#include "server/tei/dialect.h"

namespace sluice::server {
namespace {

std::string_view tei_error_type(int status) {
  switch (status) {
    case 500:
      return "Backend";
    case 503:
      return "Overloaded";
    default:
      return "Validation";
  }
}

std::string tei_error_body(const ApiError& error) {
  return dump_json({{"error", error.message}, {"error_type", tei_error_type(error.status)}});
}

int tei_status(const ApiError& error) {
  if (error.code == "context_length_exceeded" || error.code == "array_above_max_length") return 413;
  if (error.status == 400) return 422;
  if (error.status == 500) return 424;
  return error.status == 503 ? 429 : error.status;
}

}  // namespace

const Dialect kTei{.name = "tei",
                   .error_body = tei_error_body,
                   .status = tei_status,
                   .prefixes = {"/predict", "/similarity", "/decode"}};

namespace {
const Registry<Dialect> registered_tei{kTei};
}

}  // namespace sluice::server
