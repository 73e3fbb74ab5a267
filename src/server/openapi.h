// A description of the API in OpenAPI 3.1, and a page that shows it. Both are made from the routes and from the rows
// that validate requests.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "server/router.h"

namespace sluice::server {

// The document for these routes. Routes of an endpoint get the endpoint's fields. Files of the web page are left out.
Json openapi_document(const std::vector<Route>& routes);

// The document as HTML. The page needs no script and nothing from elsewhere.
std::string openapi_page(const Json& document);

// GET /openapi.json, GET /docs and its style, for the routes of `router` at the time of the first request.
std::vector<Route> openapi_routes(const Router& router);

}  // namespace sluice::server
