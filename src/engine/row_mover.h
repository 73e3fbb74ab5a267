// Moves rows of the prefix cache between the device's blocks, host memory, a file and other servers, as the store of
// rows asks (cache/row_store.h), while the engine computes. Two threads with queues of their own copy from and to the
// device; others read and write the file, and exchange rows with other servers (row_server.h, row_client.h). A rank
// moves its own part of each row (engine/rank_rows.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/thread_group.h"
#include "base/thread_pool.h"
#include "cache/row_file.h"
#include "cache/row_store.h"
#include "engine/load.h"
#include "engine/row_client.h"
#include "engine/row_sends.h"
#include "engine/row_server.h"
#include "parallel/ucx.h"
#include "sluice/options.h"

namespace sluice {

class RowMover {
 public:
  // The options must ask for rows to be kept (keeps_rows). `loaded` must outlive the mover. Threads of the mover call
  // `wake` when transfers are done, and `events` when other servers want something. Throws Error if there is not enough
  // memory, or if the file or the address for other servers cannot be used.
  RowMover(const EngineOptions& options, const LoadedModel& loaded, std::function<void()> wake,
           RowServer::Events events);
  ~RowMover();

  // Sizes of a store that this mover can serve.
  RowStoreOptions store_options() const;
  // The rows that the file had, the oldest first.
  std::vector<RowFile::Kept> take_kept();

  // Begins transfers. To be called by the thread that calls the model's queue, after the last step was called.
  void start(std::vector<std::shared_ptr<const RowTransfer>> transfers);
  struct Done {
    uint64_t transfer = 0;
    std::vector<int> failed{};  // indices of rows
  };
  std::vector<Done> take_done();
  // Whether rows are on their way within this machine.
  bool busy() const { return open_.load() > 0; }

  size_t row_bytes() const { return row_bytes_; }
  // Where other servers fetch rows; null: nowhere.
  const TcpAddress* address() const { return server_ != nullptr ? &server_->address() : nullptr; }
  // Tells the server that a prompt's rows came from that it need not hold them any more.
  void release(const KvTransfer& transfer) {
    if (clients_ != nullptr) clients_->release(transfer.host, transfer.port, transfer.id);
  }

 private:
  struct Job {
    std::shared_ptr<const RowTransfer> transfer;
    uint64_t event = 0;             // of the model's queue, when the transfer began
    int file_rows = 0;              // rows that are still to be read from the file, or written to it
    std::vector<uint8_t> failed{};  // [rows]
  };
  // One direction between the device and host memory. Two queues, so that some rows are packed while others are copied.
  struct Lane {
    std::unique_ptr<ops::Queue> packs, copies;
    Buffer staged{};   // rows on the device, packed; empty if the device works on host memory
    Buffer indices{};  // on the device
    Buffer pinned{};   // the same, on the host
    std::deque<std::shared_ptr<Job>> jobs{};
    std::condition_variable wake{};
  };
  struct FileTask {
    std::shared_ptr<Job> job;
    int row = 0;
  };

  void make_lane(Lane& lane);
  void run_lane(Lane& lane, bool saves);
  void move(Lane& lane, Job& job, bool saves);
  void copy_rows(Lane& lane, const Job& job, size_t begin, size_t end, bool to_host);
  void run_file();
  bool do_file(const FileTask& task);
  void end(Job& job);
  void add_done(Done done);
  std::span<std::byte> host_row(int slot) const;
  void stop();

  const LoadedModel& loaded_;
  const std::function<void()> wake_;
  const size_t groups_, block_bytes_, row_bytes_;
  int rows_per_transfer_ = 1;
  int host_slots_ = 0;
  std::unique_ptr<RowFile> file_;
  Buffer host_;                          // [host slots, row_bytes]
  ThreadPool thread_{1, /*pin=*/false};  // of the queues: each lane is one thread
  Arena no_arena_{0};
  Lane save_, load_;
  std::atomic<int> open_{0};  // transfers
  std::mutex mutex_;
  bool stopping_ = false;
  bool read_failed_ = false, write_failed_ = false;  // which was logged
  std::deque<FileTask> reads_, writes_;
  std::condition_variable file_work_;
  std::vector<Done> done_;
  ThreadGroup threads_;
  std::unique_ptr<Ucx> ucx_;             // null: rows travel over TCP
  std::unique_ptr<RowSends> sends_;      // null without a server
  std::unique_ptr<RowServer> server_;    // null: other servers fetch nothing here
  std::unique_ptr<RowClients> clients_;  // null: nothing is fetched
};

// Whether the options ask for rows to be kept outside of the device.
inline bool keeps_rows(const EngineOptions& o) {
  return o.kv_host_memory_bytes > 0 || !o.kv_disk.empty() || !o.kv_transfer_listen.empty() ||
         !o.kv_transfer_peer.empty();
}
// Bytes of host memory for rows, of all ranks together.
size_t host_row_bytes(const EngineOptions& options);
// The size of the files of rows, of all ranks together.
int64_t file_row_bytes(const EngineOptions& options);
// Bytes on the device for each direction.
inline constexpr size_t kStagedRowBytes = size_t{128} << 20;

}  // namespace sluice
