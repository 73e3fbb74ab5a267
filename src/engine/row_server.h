// Sends rows of the prefix cache to other servers, which go on with prompts that this one computes
// (docs/scale-out.md, Prefill and decode apart). The messages are those of cache/row_message.h.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/thread_group.h"
#include "cache/row_message.h"
#include "cache/row_store.h"
#include "parallel/tcp.h"
#include "scheduler/row_exports.h"

namespace sluice {

// A connection on which no byte moves for so long within a message is given up.
inline constexpr std::chrono::milliseconds kRowSilence{10'000};

// The bytes of a host slot.
using RowBytes = std::function<std::span<std::byte>(int slot)>;
// Makes of a connection the stream that rows travel over. Any thread.
using MakeStream = std::function<std::unique_ptr<ByteStream>(std::unique_ptr<TcpStream>)>;
// A transfer is done; `failed` are indices of rows. Any thread.
using TransferDone = std::function<void(const RowTransfer& transfer, std::vector<int> failed)>;

class RowServer {
 public:
  // What other servers ask for. Called on threads of the server.
  struct Events {
    std::function<void(RowWant)> want{};
    std::function<void(uint64_t number)> forget{};
    std::function<void(std::string id)> release{};
  };

  // Throws Error(kInvalidRequest) that names --kv-transfer-listen if the address cannot be used.
  RowServer(const std::string& address, const Hello& hello, MakeStream make_stream, RowBytes bytes, Events events,
            TransferDone done);
  ~RowServer();

  const TcpAddress& address() const { return address_; }
  // Takes a transfer of the kind kSend or kRefuse.
  void start(std::shared_ptr<const RowTransfer> transfer);

 private:
  struct Peer {
    std::unique_ptr<ByteStream> stream;
    std::deque<std::shared_ptr<const RowTransfer>> transfers{};
    std::condition_variable wake{};
    bool ended = false;  // under the mutex
    std::atomic<bool> gone{false};
    std::thread thread{};
  };
  struct OpenWant {
    Peer* peer = nullptr;
    uint64_t transfer = 0;  // the peer's number of it
    size_t rows = 0;        // that were not sent
  };

  void accept_peers();
  void serve(Peer& peer);
  bool greet(Peer& peer);
  bool take_message(Peer& peer);
  bool open_want(Peer& peer, uint64_t transfer, Want want);
  void cancel(const Peer& peer, uint64_t transfer);
  void end(Peer& peer);
  void send_rows(Peer& peer);
  bool send(Peer& peer, const RowTransfer& transfer, size_t& sent);

  TcpAddress address_;
  const Hello hello_;
  const MakeStream make_stream_;
  const RowBytes bytes_;
  const Events events_;
  const TransferDone done_;
  TcpListener listener_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, OpenWant> wants_;  // by number; under the mutex
  uint64_t last_want_ = 0;
  std::list<Peer> peers_;  // changed by the thread that accepts them
  std::atomic<bool> stopping_{false};
  ThreadGroup threads_;
};

}  // namespace sluice
