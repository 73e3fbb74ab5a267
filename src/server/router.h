// The table of routes. Authentication, methods and metrics all go by the entry a request was matched to, never by its
// path, so that no spelling of a path can slip past one of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/dialect.h"
#include "server/http/http.h"

namespace sluice::server {

// What authentication and transport know about a request, for its handler.
struct RequestContext {
  std::string tenant;  // of the API key; empty without keys
  std::string suffix;  // what the '*' of the route's path stands for, percent-decoded
};

struct Route {
  enum Flags : unsigned {
    kPublic = 1,     // needs no API key
    kQuick = 2,      // answers at once, on the I/O thread; others run on a worker
    kGenerates = 4,  // asks the engine for tokens: refused while it is overloaded or draining
  };
  std::string_view method = {};  // "GET" (HEAD comes with it), "POST" or "PUT" (a JSON body), "DELETE", "HEAD"
  std::string_view path = {};    // exact, or with a last segment of '*' for the rest of the path
  unsigned flags = 0;
  std::string_view help = {};
  const Dialect* dialect = nullptr;  // prints errors; null: the default one
  std::function<void(HttpRequest, RequestContext, std::shared_ptr<HttpReply>)> handle = {};
};

class Router {
 public:
  void add(std::vector<Route> routes);
  const std::vector<Route>& routes() const { return routes_; }

  struct Match {
    const Route* route = nullptr;  // null: unknown path, or a method it does not have
    std::string suffix;
    std::vector<std::string> allowed;  // methods of the path; empty: unknown path
  };
  Match match(std::string_view method, std::string_view path) const;

 private:
  std::vector<Route> routes_;
};

}  // namespace sluice::server
