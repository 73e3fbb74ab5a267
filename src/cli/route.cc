// sluice route: a router in front of replicas.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/log.h"
#include "cli/command.h"
#include "route/options.h"
#include "route/route_server.h"
#include "server/startup.h"

namespace sluice::cli::route_command {
namespace {

int route_requests(route::RouteOptions options) {
  server::open_standard_descriptors();
  log::set_level(options.log_level);
  log::set_format(options.log_format == "json" ? log::Format::kJson : log::Format::kText);
  // Every request in flight has a second connection, to its replica.
  options.max_connections = std::max(1, server::fit_connections(2 * options.max_connections) / 2);
  route::RouteServer(options).run();
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto options = std::make_shared<route::RouteOptions>();
  add_route_options(app, *options);
  return [options] { return route_requests(*options); };
}

const Command command{"route", "pass requests on to replicas of a server, by prefix and load", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::route_command
