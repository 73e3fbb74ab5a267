// An API family: the endpoints of one vendor and the form of its errors.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/registry.h"
#include "server/errors.h"
#include "server/models.h"

namespace sluice::server {

// One constant object per dialect, registered by the dialect's own folder. Endpoints name theirs (endpoint.h).
struct Dialect {
  std::string_view name = {};
  std::string (*error_body)(const ApiError& error) = nullptr;  // JSON text
  int (*status)(const ApiError& error) = nullptr;              // of the response; null: the error's own
  std::string_view request_id_header = {};  // answers carry the request's id under this name, too; may be empty
  std::string_view model_suffix = {};       // what clients may append to a model's name
  std::vector<std::string_view> model_prefixes = {};  // what they may write before it
  std::vector<std::string_view> prefixes = {};        // paths that begin so get its errors, also when no route has them
  bool any_content_type = false;                      // its clients send JSON as curl does, without saying so
};

// Prints errors of requests that no dialect claims. Ends the program when no dialect is linked.
const Dialect& default_dialect();
// The dialect that claims the path by its prefixes, or else the default one.
const Dialect& dialect_of(std::string_view path);
// The name of a model without what clients of the dialect may add to it.
std::string_view plain_model_name(const Dialect& dialect, std::string_view name);
// The model that a client of the dialect calls by this name.
std::optional<ServedModel> find_model(const Models& models, const Dialect& dialect, std::string_view name);

}  // namespace sluice::server
