// The table of routes. Authentication, methods and metrics all use the entry that a request was matched to, never its
// path. So no spelling of a path gets past one of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/dialect.h"
#include "server/http/http.h"

namespace sluice::server {

// What authentication and routing found out about a request, for its handler.
struct RequestContext {
  std::string tenant;  // name of the API key's owner; empty without keys
  std::string suffix;  // what the '*' of the route's path stands for, percent-decoded
};

struct Route {
  enum Flags : unsigned {
    kPublic = 1,     // needs no API key
    kQuick = 2,      // answers at once, on the I/O thread; others run on a worker
    kGenerates = 4,  // asks the engine for work: refused while it is overloaded or draining
    kEssential = 8,  // answered even when the server has too many connections
    kNoBody = 16,    // reads no body: its requests need no content type
  };
  std::string_view method = {};  // "GET" (HEAD comes with it), "POST" or "PUT" (a JSON body), "DELETE", "HEAD"
  std::string_view path = {};    // exact; a last segment of '*' stands for the rest of the path
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
    std::vector<std::string> allowed;  // methods that the path has; empty: unknown path
  };
  // A slash at the end of an unknown path is ignored.
  Match match(std::string_view method, std::string_view path) const;

 private:
  Match match_exactly(std::string_view method, std::string_view path) const;

  std::vector<Route> routes_;
};

}  // namespace sluice::server
