// Runs work in a process of its own, so that it cannot leave anything behind.
#pragma once

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <string_view>
#include <type_traits>

#include "base/check.h"

namespace sluice::simulation {

// Returns what the work returns, or nothing if its process ended with a signal or another status than 0. Prints the
// signal behind `name`.
template <class T>
std::optional<T> in_child(std::string_view name, const std::function<T()>& work) {
  static_assert(std::is_trivially_copyable_v<T>, "results go through a pipe");
  int ends[2];
  CHECK(::pipe(ends) == 0, "no pipe");
  std::fflush(nullptr);
  const pid_t child = ::fork();
  CHECK(child >= 0, "no process");
  if (child == 0) {
    const T result = work();
    CHECK(::write(ends[1], &result, sizeof result) == sizeof result, "no pipe");
    ::_exit(0);
  }
  ::close(ends[1]);
  T result{};
  const bool whole = ::read(ends[0], &result, sizeof result) == sizeof result;
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) fmt::print(stderr, "{}: ended by signal {}\n", name, WTERMSIG(status));
  if (!whole || status != 0) return std::nullopt;
  return result;
}

}  // namespace sluice::simulation
