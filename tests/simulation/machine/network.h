// The simulated network: sockets, and what waits for them. Private to the machine's files.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace sluice::simulation {

struct Epoll;

// What a descriptor stands for.
struct File {
  virtual ~File() = default;
  virtual uint32_t ready() const = 0;  // EPOLLIN, ...
  virtual void close() {}              // the last descriptor is gone
  void changed();                      // wakes whoever waits for it

  bool blocking = true;
  int descriptors = 0;
  std::vector<Epoll*> watchers{};
};

struct Address {
  uint32_t ip = 0;
  uint16_t port = 0;
};

// One end of a connection. What it sends lies in the other end's buffer.
struct Socket : File {
  uint32_t ready() const override;
  void close() override;
  size_t room() const { return capacity - std::min(capacity, received.size()); }

  Address local{}, remote{};
  std::shared_ptr<Socket> peer{};  // null: not connected
  std::string received{};          // not read yet
  size_t capacity = 64 << 10;
  bool ended = false;     // the peer sends nothing more
  bool reset = false;     // by the peer
  bool closed = false;    // here
  bool finished = false;  // sends nothing more
  bool abortive = false;  // closing resets
};

struct Listener : File {
  uint32_t ready() const override { return queue.empty() ? 0u : uint32_t{EPOLLIN}; }
  void close() override;

  Address local{};
  std::deque<std::shared_ptr<Socket>> queue{};
};

// An eventfd or a timerfd.
struct Counter : File {
  uint32_t ready() const override;
  uint64_t value = 0;
  int64_t expiry = INT64_MAX;  // of a timer
};

struct Epoll : File {
  struct Watch {
    std::shared_ptr<File> file;
    uint32_t events = 0;
    uint64_t data = 0;
    bool pending = false;  // something happened since the last report
  };
  uint32_t ready() const override { return 0; }
  void close() override;
  void forget(const File* file);
  int64_t next_expiry() const;
  int collect(epoll_event* out, int most);

  std::vector<Watch> watches{};
};

int open_files();  // descriptors

}  // namespace sluice::simulation
