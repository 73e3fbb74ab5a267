// What a run of the simulation is made of: options, weather and clients, all from its seed.
#pragma once

#include <cstdint>
#include <string>

#include "simulation/machine/machine.h"
#include "simulation/model.h"
#include "sluice/options.h"

namespace sluice::simulation {

struct Plan {
  EngineOptions engine;
  ServerOptions server;
  Weather weather;
  Pace pace;
  int honest = 0;           // clients that only want answers
  int watchers = 0;         // follow the stream of events
  int leavers = 0;          // leave in the middle, some behind many pipelined bytes
  int slow = 0;             // read and write slowly, or stop
  int garbage = 0;          // send what is not HTTP, or nearly
  int uploads = 0;          // large bodies that do not end
  int idle = 0;             // sockets of one address that send nothing
  int bombs = 0;            // requests for more sequences than may wait
  int drips = 0;            // send a body for as long as they may
  int crowd = 0;            // connections that hold a request, from...
  int crowd_addresses = 0;  // ...so many addresses
  bool shuts_down_early = false;

  bool faults() const { return weather.no_memory + weather.no_call > 0; }
  bool crowded() const { return uploads + idle + crowd > 0; }
  int active() const;  // connections that clients may keep busy
  int most_per_address() const;
  // Nobody else gets a connection at times.
  bool starves() const { return crowd > 0 && active() >= server.max_connections; }
  // The longest that a request of an honest client may take, in nanoseconds: everything that may wait before it.
  int64_t patience() const;
  // The time within which the engine has stopped working for a client that left.
  int64_t notice() const;
};

Plan make_plan(uint64_t seed);
std::string describe(const Plan& plan);  // one line

}  // namespace sluice::simulation
