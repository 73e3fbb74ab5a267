// Starts threads for one call. Texts long enough are rare, so no threads are kept.
#include "tokenizer/threads.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace sluice::tokenizer {

int Threads::for_text(size_t bytes) const {
  const size_t worth = bytes / share;
  if (worth < 2) return 1;
  const auto cpus = static_cast<size_t>(std::max(1u, std::thread::hardware_concurrency()));
  return static_cast<int>(std::min(worth, most > 0 ? static_cast<size_t>(most) : cpus));
}

void run_parts(int count, const std::function<void(int part)>& part) {
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(count));
  const auto attempt = [&](int i) {
    try {
      part(i);
    } catch (...) {
      thrown[static_cast<size_t>(i)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i + 1 < count; ++i) {
      try {
        threads.emplace_back(attempt, i);
      } catch (const std::system_error&) {  // the system has no more threads
        attempt(i);
      }
    }
    attempt(count - 1);
  }
  for (const std::exception_ptr& error : thrown) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace sluice::tokenizer
