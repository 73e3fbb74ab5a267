// Times for people and clients.
#pragma once

#include <chrono>

namespace sluice::server {

inline double milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace sluice::server
