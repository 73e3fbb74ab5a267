// What all clients do: choices that come from the machine, and expectations that end the run.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "server/http_client.h"
#include "simulation/world.h"

namespace sluice::simulation {

constexpr int64_t kMillisecond = 1'000'000, kSecond = 1'000'000'000;  // nanoseconds
constexpr uint32_t kHonestNetwork = 10u << 24 | 1 << 16, kHostileNetwork = 10u << 24 | 2 << 16;

inline Machine& machine() { return Machine::get(); }
inline int64_t draw(int64_t low, int64_t high) { return machine().between(low, high); }
inline bool chance(int percent) { return machine().chance(percent * 10'000); }
inline void pause(int64_t most) { machine().sleep_until(machine().now() + draw(0, most)); }

template <class... Args>
void expect(bool good, fmt::format_string<Args...> what, Args&&... args) {
  if (!good) machine().fail(fmt::format(what, std::forward<Args>(args)...));
}

std::string random_text(int64_t length);

// Sends in pieces that end anywhere.
bool send_in_pieces(TestClient& client, std::string_view bytes, int64_t longest_pause);

inline int remaining_ms(int64_t begin, int64_t patience) {
  return static_cast<int>(std::max<int64_t>(1, (begin + patience - machine().now()) / kMillisecond));
}

}  // namespace sluice::simulation
