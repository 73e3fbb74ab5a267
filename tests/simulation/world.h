// What the clients of a run share, and the account of who waits for what.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "simulation/plan.h"

namespace sluice::simulation {

// How often what happened, over a run.
struct Counts {
  uint64_t answered = 0, refused = 0, cut = 0;  // requests of honest clients
  uint64_t left = 0;                            // generations whose client left
  uint64_t hostile = 0;                         // requests of the others
  Counts& operator+=(const Counts& other) {
    answered += other.answered;
    refused += other.refused;
    cut += other.cut;
    left += other.left;
    hostile += other.hostile;
    return *this;
  }
};

// Sequences that somebody waits for. Those of a client that left count until the server must have noticed.
class Ledger {
 public:
  uint64_t expect(int sequences);
  // The client has its answer, or has left.
  void left(uint64_t entry, int64_t noticed_within);
  int64_t sequences();  // that may be in the engine now

 private:
  struct Entry {
    int sequences = 0;
    int64_t until = kNever;
  };
  std::map<uint64_t, Entry> entries_;
  uint64_t next_ = 0;
};

struct World {
  Plan plan;
  int port = 0;
  uint64_t last_event = 0;  // no request begins afterwards
  bool stopping = false;    // the server was told to end
  Ledger ledger;
  Counts counts;

  bool over() const { return Machine::get().events() >= last_event; }
};

// The clients' threads. Each returns when the world is over.
void honest_client(World& world, int number);
void watching_client(World& world, int number);  // follows the stream of events
void leaving_client(World& world, int number);
void slow_client(World& world, int number);
void garbage_client(World& world, int number);
void uploading_client(World& world, int number);
void dripping_client(World& world, int number);
void crowding_clients(World& world);
void idle_clients(World& world);
void bomb_client(World& world, int number);

// Asks for the server's metrics until the value of the line that begins with `name` is `wanted`, for up to
// `patience`. Fails the run if that does not happen.
void expect_metric(World& world, const std::string& name, int wanted, int64_t patience);
// One request that must be answered correctly.
void ask_once(World& world);

}  // namespace sluice::simulation
