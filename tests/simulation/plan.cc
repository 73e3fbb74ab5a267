// Draws the plan of a run from its seed.
#include "simulation/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

namespace sluice::simulation {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15 + 1) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  int integer(int low, int high) { return static_cast<int>(between(low, high)); }
  bool chance(int percent) { return between(1, 100) <= percent; }

 private:
  std::mt19937_64 random_;
};

void draw_engine(Draw& draw, Plan& plan) {
  EngineOptions& o = plan.engine;
  o.threads = 1;
  o.backend = "reference";
  // Answers to bombs must last, so that it shows how many run at a time.
  const bool lasting = plan.bombs > 0;
  o.max_model_len = draw.integer(lasting ? 512 : 64, lasting || draw.chance(50) ? 1024 : 256);
  o.max_num_seqs = draw.integer(1, 24);
  o.max_num_batched_tokens = draw.integer(8, 256);
  o.max_num_queued_reqs = draw.integer(4, 48);
  o.block_size = 8;
  o.enable_prefix_caching = draw.chance(70);
  if (draw.chance(20)) o.scheduling_policy = "priority";
  // One sequence must fit; few blocks more make sequences give way to each other.
  const int one = (o.max_model_len + o.block_size - 1) / o.block_size;
  const int blocks = draw.chance(30) ? one + draw.integer(0, one) : one * o.max_num_seqs;
  constexpr int kTokenBytes = 16;  // keys and values of the simulated model
  o.kv_cache_memory_bytes = int64_t{blocks} * o.block_size * kTokenBytes;
  plan.pace = {.per_step = draw.between(lasting ? 2 * kMillisecond : 100 * kMicrosecond, 8 * kMillisecond),
               .per_token = draw.between(0, 20 * kMicrosecond)};
}

void draw_server(Draw& draw, Plan& plan) {
  ServerOptions& o = plan.server;
  o.port = 0;
  o.log_level = "off";
  o.io_threads = draw.integer(1, 3);
  o.worker_threads = draw.integer(1, 3);
  o.max_connections = draw.integer(20, 60);
  if (draw.chance(40)) o.max_connections_per_address = draw.integer(8, 20);
  o.max_body_bytes = draw.chance(50) ? 256 << 10 : 1 << 20;
  o.max_total_body_bytes = o.max_body_bytes * draw.integer(1, 3);
  o.header_timeout_ms = draw.integer(1000, 10'000);
  o.body_timeout_ms = draw.integer(2000, 30'000);
  o.body_total_timeout_ms = o.body_timeout_ms * 2;
  o.keep_alive_timeout_ms = draw.integer(2000, 75'000);
  o.shutdown_timeout_ms = draw.integer(1000, 30'000);
}

void draw_weather(Draw& draw, Plan& plan) {
  Weather& w = plan.weather;
  w.preempt = draw.integer(0, draw.chance(50) ? 500'000 : 50'000);
  if (draw.chance(50)) {
    w.late = draw.integer(1, 5000);
    w.lateness = draw.between(kMillisecond, 50 * kMillisecond);
  }
  if (draw.chance(50)) w.spurious = draw.integer(1, 20'000);
  w.short_transfer = draw.integer(0, 500'000);
  if (draw.chance(30)) w.no_descriptor = draw.integer(1, 100'000);
  if (draw.chance(30)) w.no_memory = draw.integer(1, draw.chance(50) ? 50 : 2000);
  w.event_cost = draw.between(100, 5 * kMicrosecond);
}

}  // namespace

int Plan::most_per_address() const {
  const int limit = server.max_connections_per_address;
  return limit > 0 ? limit : std::max(1, server.max_connections / 2);
}

int Plan::active() const {
  return honest + watchers + leavers + slow + garbage + uploads + bombs + drips +
         std::min(crowd, crowd_addresses * most_per_address());
}

int64_t Plan::patience() const {
  // Sequences that run or may wait before the request, as rounds of a full batch. Where the cache holds few sequences,
  // they run one after the other, and some are computed again.
  const int64_t sequences = engine.max_num_queued_reqs + 2 * engine.max_num_seqs + 8;
  constexpr int64_t kTokenBytes = 16;
  const int64_t fit = std::max<int64_t>(1, engine.kv_cache_memory_bytes / kTokenBytes / engine.max_model_len);
  const int64_t batch = std::min<int64_t>(engine.max_num_seqs, fit);
  const int64_t rounds = sequences / batch + 1;
  const int64_t steps = engine.max_model_len + engine.max_model_len * batch / engine.max_num_batched_tokens + 1;
  const int64_t step = pace.per_step + pace.per_token * engine.max_num_batched_tokens + weather.lateness / 20;
  return 5 * kSecond + rounds * steps * step * (fit < engine.max_num_seqs ? 3 : 1) + 20 * weather.lateness;
}

int64_t Plan::notice() const {
  const int64_t step = pace.per_step + pace.per_token * engine.max_num_batched_tokens;
  // Each failure to accept a connection delays all that wait to be accepted, also those whose client has left.
  const int64_t accepting = weather.no_descriptor > 0 ? 20 * 100 * kMillisecond : 0;
  return 250 * kMillisecond + 4 * step + 20 * weather.lateness + accepting;
}

Plan make_plan(uint64_t seed) {
  Draw draw(seed);
  Plan plan;
  plan.honest = draw.integer(1, 5);
  if (draw.chance(70)) plan.leavers = draw.integer(1, 6);
  if (draw.chance(50)) plan.slow = draw.integer(1, 4);
  if (draw.chance(50)) plan.garbage = draw.integer(1, 4);
  if (draw.chance(30)) plan.uploads = draw.integer(4, 32);
  if (draw.chance(40)) plan.bombs = draw.integer(1, 3);
  draw_engine(draw, plan);
  draw_server(draw, plan);
  draw_weather(draw, plan);
  if (draw.chance(30)) plan.idle = plan.server.max_connections + draw.integer(0, 40);
  plan.shuts_down_early = draw.chance(15);
  if (draw.chance(30)) plan.weather.no_call = draw.integer(1, draw.chance(50) ? 100 : 5000);
  // Many sockets would wait to be accepted for long, and so would all others.
  if (plan.idle > 0) plan.weather.no_descriptor = plan.weather.no_call = 0;
  if (draw.chance(40)) plan.watchers = draw.integer(1, 3);
  if (draw.chance(25)) {
    plan.drips = draw.integer(1, 3);
    // A run lasts some ten seconds, and shall see the end of a body's time. Some last longer, and see that a body needs
    // a rate after ten seconds.
    plan.server.body_timeout_ms = draw.chance(50) ? draw.integer(2000, 3000) : draw.integer(7000, 10'000);
    plan.server.body_total_timeout_ms = plan.server.body_timeout_ms * 2;
  }
  if (plan.idle == 0 && draw.chance(25)) {
    plan.crowd_addresses = draw.integer(1, 3);
    plan.crowd = plan.server.max_connections + draw.integer(0, 10);
    plan.weather.no_descriptor = plan.weather.no_call = 0;
  }
  return plan;
}

std::string describe(const Plan& p) {
  const EngineOptions& e = p.engine;
  const ServerOptions& s = p.server;
  const Weather& w = p.weather;
  return fmt::format(
      "context {}, sequences {}, step {}, queue {}, cache {} B, prefixes {}, {}; step {} us, token {} us; I/O threads "
      "{}, workers {}, connections {} ({} per address), body {} of {}; clients: honest {}, watchers {}, leavers {}, "
      "slow {}, garbage {}, uploads {}, idle {}, bombs {}, drips {}, crowd {} from {}; preempt {}, late {} by {} ms, "
      "spurious {}, short {}, no "
      "descriptor {}, no "
      "memory {}, no call {}, event {} ns; early end {}; patience {:.1f} s",
      e.max_model_len, e.max_num_seqs, e.max_num_batched_tokens, e.max_num_queued_reqs, e.kv_cache_memory_bytes,
      e.enable_prefix_caching, e.scheduling_policy, p.pace.per_step / kMicrosecond, p.pace.per_token / kMicrosecond,
      s.io_threads, s.worker_threads, s.max_connections, s.max_connections_per_address, s.max_body_bytes,
      s.max_total_body_bytes, p.honest, p.watchers, p.leavers, p.slow, p.garbage, p.uploads, p.idle, p.bombs, p.drips,
      p.crowd, p.crowd_addresses, w.preempt, w.late, w.lateness / kMillisecond, w.spurious, w.short_transfer,
      w.no_descriptor, w.no_memory, w.no_call, w.event_cost, p.shuts_down_early,
      static_cast<double>(p.patience()) * 1e-9);
}

}  // namespace sluice::simulation
