// Fetches rows of the prefix cache from servers that compute prompts for this one (docs/scale-out.md, Prefill and
// decode apart). The messages are those of cache/row_message.h.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/row_server.h"

namespace sluice {

// One server. Its thread connects when there is something to fetch, and again after the connection ended.
class RowClient {
 public:
  // `silence`: a transfer of which no row comes for so long ends without the rest.
  RowClient(TcpAddress address, const Hello& hello, MakeStream make_stream, std::chrono::milliseconds silence,
            RowBytes bytes, TransferDone done);
  ~RowClient();

  // Takes a transfer of the kind kReceive.
  void start(std::shared_ptr<const RowTransfer> transfer);
  // The rows of a prompt need not be held any more.
  void release(const std::string& id);

 private:
  using Clock = std::chrono::steady_clock;
  struct Open {
    std::shared_ptr<const RowTransfer> transfer;
    std::vector<bool> here{};  // [rows]: came and is right
    std::vector<bool> came{};  // [rows]
    size_t left = 0;
    Clock::time_point last{};  // when a row came
  };

  void run();
  std::unique_ptr<ByteStream> connect();
  bool use(ByteStream* stream);
  void exchange(ByteStream& stream);
  bool send_new(ByteStream& stream);
  bool take_message(ByteStream& stream);
  bool take_row(ByteStream& stream, const MessageHead& head);
  bool end_silent(ByteStream& stream);
  void end(std::map<uint64_t, Open>::iterator open);
  void end_all();
  void stop();

  const TcpAddress address_;
  const Hello hello_;
  const MakeStream make_stream_;
  const std::chrono::milliseconds silence_;
  const RowBytes bytes_;
  const TransferDone done_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  ByteStream* stream_ = nullptr;                         // the open connection; under the mutex
  std::vector<std::shared_ptr<const RowTransfer>> new_;  // not asked for yet; under the mutex
  std::vector<std::string> released_;                    // not told yet; under the mutex
  // The thread's own:
  std::map<uint64_t, Open> open_;
  std::vector<std::byte> unwanted_;  // a row that comes too late
  Clock::time_point retry_at_{};
  ThreadGroup threads_;
};

// All servers. Used by one thread.
class RowClients {
 public:
  RowClients(const Hello& hello, MakeStream make_stream, std::chrono::milliseconds silence, RowBytes bytes,
             TransferDone done)
      : hello_(hello),
        make_stream_(std::move(make_stream)),
        silence_(silence),
        bytes_(std::move(bytes)),
        done_(std::move(done)) {}

  void start(std::shared_ptr<const RowTransfer> transfer);
  void release(const std::string& host, int port, const std::string& id);

 private:
  const Hello hello_;
  const MakeStream make_stream_;
  const std::chrono::milliseconds silence_;
  const RowBytes bytes_;
  const TransferDone done_;
  std::map<std::string, RowClient> clients_;  // by address
};

}  // namespace sluice
