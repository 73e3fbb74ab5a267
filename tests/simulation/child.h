// Runs work in a process of its own, so that it cannot leave anything behind.
#pragma once

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace sluice::simulation {

// Work that runs in a process of its own.
template <class T>
class Child {
  static_assert(std::is_trivially_copyable_v<T>, "results go through a pipe");

 public:
  // `name`: what a message about the process begins with.
  Child(std::string name, const std::function<T()>& work) : name_(std::move(name)) {
    int ends[2];
    CHECK(::pipe(ends) == 0, "no pipe");
    std::fflush(nullptr);
    id_ = ::fork();
    CHECK(id_ >= 0, "no process");
    if (id_ == 0) {
      const T result = work();
      std::fflush(nullptr);
      CHECK(::write(ends[1], &result, sizeof result) == sizeof result, "no pipe");
      ::_exit(0);
    }
    ::close(ends[1]);
    pipe_ = ends[0];
  }

  // Returns what the work returns, or nothing if the process ended with a signal or another status than 0. Prints the
  // signal. Is called once.
  std::optional<T> wait() {
    T result{};
    const bool whole = ::read(pipe_, &result, sizeof result) == sizeof result;
    ::close(pipe_);
    int status = 0;
    ::waitpid(id_, &status, 0);
    if (WIFSIGNALED(status)) fmt::print(stderr, "{}: ended by signal {}\n", name_, WTERMSIG(status));
    if (!whole || status != 0) return std::nullopt;
    return result;
  }

 private:
  std::string name_;
  pid_t id_ = 0;
  int pipe_ = -1;
};

template <class T>
std::optional<T> in_child(std::string name, const std::function<T()>& work) {
  return Child<T>(std::move(name), work).wait();
}

}  // namespace sluice::simulation
