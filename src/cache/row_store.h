// Rows of the prefix cache that are kept outside of the device's blocks: in slots of host memory and, below them, in
// slots of a file. Ids only: the store decides what is kept where, and engine/row_mover.h moves the bytes.
//
// A row is the blocks of all groups for the same tokens (cache/block_pool.h). It is found by its hash. The hash is a
// SHA-256 of all that the row's values depend on, so the store compares nothing else.
//
// A row is saved when its blocks are committed to the prefix cache: it gets a host slot, and is copied there while
// later steps run (kSave). With a file it is then written to a slot of the file (kWrite). The row that was used least
// recently gives up its slot where slots run out. Loading brings rows back into blocks (kLoad). Rows that only the file
// has are read into a host slot first.
//
// Rows also go from one server to another (cache/row_message.h). A row that another server has is received into a host
// slot (kReceive), where it is like one that was saved. A row is sent from its host slot to a server that wants it
// (kSend). That begins while the row is being saved, so that nobody has to notice the end of the save.
//
// Slots that a transfer uses stay what they are until the transfer is finished. Where all slots are in use, a row is
// not saved, and loads wait.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/block_pool.h"

namespace sluice {

// Slots in the order of their use. A slot is owned by the row that it keeps, and is busy while transfers use it.
class SlotPool {
 public:
  explicit SlotPool(int slots);

  struct Taken {
    int slot = -1;                       // -1: all slots are busy
    std::optional<BlockHash> lost = {};  // the row that was kept there
  };
  // A slot for the row: a free one, or that of the row that was used least recently. It counts as used now.
  Taken take(const BlockHash& row);
  // This slot, which is free, keeps the row.
  void own(int slot, const BlockHash& row);
  // The row of the slot was used now.
  void touch(int slot);
  // The slot keeps nothing any more. It is free when no transfer uses it.
  void disown(int slot);
  // One more transfer uses the slot; one less.
  void begin_use(int slot);
  void end_use(int slot);

  int slots() const { return static_cast<int>(slots_.size()); }
  int owned() const { return owned_; }

 private:
  struct Slot {
    BlockHash row{};
    int users = 0;
    bool owned = false;
    bool in_free = false;
    std::list<int>::iterator at{};  // in idle_, if it is owned and has no users
  };
  void settle(int slot);

  std::vector<Slot> slots_;
  std::vector<int> free_;  // slots that own() took may still be in it
  std::list<int> idle_;    // least recently used first
  int owned_ = 0;
};

struct RowStoreOptions {
  int host_slots = 0;  // 0: no row is kept
  int file_slots = 0;
  int rows_per_transfer = 16;  // at most
  int rows_per_fetch = 1024;   // the same for kReceive
};

// Where rows come from.
struct RowSource {
  std::string host;
  int port = 0;
  std::string id;  // of the prompt, see KvTransfer
};

// Work for whoever moves the bytes. Transfers may be done in any order and at the same time, but for rows that are sent
// while they are saved.
struct RowTransfer {
  enum class Kind : uint8_t {
    kSave,     // from the device's blocks to host slots
    kLoad,     // to the device's blocks, from host slots
    kWrite,    // from host slots to slots of the file
    kClear,    // what the file has is invalid, but for writes of this epoch and later ones
    kReceive,  // from another server to host slots
    kSend,     // from host slots to another server, once the rows are there: some may still be saved
    kRefuse,   // tells another server that the rest of what it wants does not come
  };
  struct Row {
    BlockHash hash;
    int host_slot = -1;
    int file_slot = -1;  // kWrite: where to; kLoad: the host slot is filled from there first, unless it is -1
    int index = 0;       // kSend: in what is wanted
  };
  uint64_t id = 0;
  Kind kind = Kind::kSave;
  uint64_t epoch = 0;  // counts clear()
  std::vector<Row> rows{};
  std::vector<BlockId> blocks{};              // [rows, groups] of kSave and kLoad; kNoBlock: not loaded
  uint64_t want = 0;                          // kSend, kRefuse: what it is an answer to
  std::shared_ptr<const RowSource> source{};  // kReceive
};

struct RowStoreStats {
  int host_rows = 0, file_rows = 0;                       // kept
  uint64_t saved = 0, loaded = 0, written = 0, read = 0;  // rows
  uint64_t not_saved = 0;                                 // rows for which there was no slot
  uint64_t failed = 0;                      // rows whose transfer failed, damaged ones of the file included
  uint64_t sent = 0, received = 0;          // rows, to and from other servers
  uint64_t not_sent = 0, not_received = 0;  // rows that another server waited for, or this one
};

// Owned by the engine thread; not thread-safe.
class RowStore {
 public:
  explicit RowStore(const RowStoreOptions& options);

  bool enabled() const { return options_.host_slots > 0; }

  // Whether the row can be loaded.
  bool has(const BlockHash& row) const;
  void touch(const BlockHash& row);

  // Begins to save a row with these blocks [groups], whose values are final once the steps called so far have run.
  // Returns false if it is kept already or cannot be. After true the caller holds the blocks until finish() returns
  // them.
  bool save(const BlockHash& row, std::span<const BlockId> blocks);
  // Calls f(block) for all blocks that are being saved.
  template <class F>
  void each_saving(F&& f) const {
    for (const BlockId block : saving_.blocks) f(block);
    for (const auto& [id, transfer] : under_way_) {
      if (transfer.work->kind != RowTransfer::Kind::kSave) continue;
      for (const BlockId block : transfer.work->blocks) f(block);
    }
  }

  // Begins to load rows into blocks [rows, groups]; kNoBlock where nothing is to be loaded. has() must be true for all
  // rows. Returns the number of the load, see take_loads().
  uint64_t load(std::span<const BlockHash> rows, std::span<const BlockId> blocks);
  struct Load {
    uint64_t number = 0;
    bool failed = false;  // the blocks do not have all values
  };
  // Loads that ended since the last call.
  std::vector<Load> take_loads();

  // Begins to receive the rows that are not kept, as far as there are host slots for them. Returns the number of the
  // fetch, see take_fetches(); 0: nothing is to be received.
  uint64_t receive(std::span<const BlockHash> rows, RowSource source);
  // Fetches that ended since the last call. has() tells which of their rows came.
  std::vector<uint64_t> take_fetches();

  // Whether the row is in host memory, or on its way there.
  bool in_host(const BlockHash& row) const;
  bool comes_to_host(const BlockHash& row) const;
  // Whether the row can be sent: it is in host memory, or is being saved there.
  bool can_send(const BlockHash& row) const;
  // Begins to send a row that can be sent. `index`: in what is wanted.
  void send(const BlockHash& row, uint64_t want, int index);
  // The `rows` rows that are wanted and were not sent do not come.
  void refuse(uint64_t want, size_t rows);
  // Keeps the row in its host slot, which is in use until release(). nullopt: it has none, or half of all are held.
  std::optional<int> hold(const BlockHash& row);
  void release(int slot);

  // Transfers that can begin now.
  std::vector<std::shared_ptr<const RowTransfer>> take_transfers();
  // A transfer is done; `failed` are indices of rows that could not be moved. Returns the blocks that are not read any
  // more.
  std::vector<BlockId> finish(uint64_t transfer, std::span<const int> failed = {});

  // Forgets all rows.
  void clear();
  // The file has this row from an earlier run. Called before anything else, for the least recently used row first.
  void restore(const BlockHash& row, int file_slot);

  RowStoreStats stats() const;

 private:
  struct Entry {
    int host_slot = -1, file_slot = -1;
    bool in_host = false, in_file = false;  // false while the row is on its way to the slot
    uint64_t received_by = 0;               // the transfer that brings it from another server
  };
  struct UnderWay {
    std::shared_ptr<const RowTransfer> work;
    uint64_t load = 0;
    std::vector<uint64_t> fetches{};  // that wait for it
  };
  // A row that must be read from the file and waits for a host slot. Its slot of the file is in use.
  struct WaitingRow {
    RowTransfer::Row row;
    std::vector<BlockId> blocks;
  };
  struct OpenLoad {
    int left = 0;  // rows that are not loaded yet
    bool failed = false;
    std::deque<WaitingRow> waiting{};
  };

  void add(RowTransfer& transfer, const RowTransfer::Row& row, std::span<const BlockId> blocks, uint64_t load = 0);
  uint64_t begin(RowTransfer& transfer, uint64_t load = 0);
  void begin_receive(RowTransfer& transfer);
  void end_fetches(std::span<const uint64_t> fetches);
  int take_host_slot(const BlockHash& row);
  void begin_reads(uint64_t number);
  void end_rows(uint64_t number, int rows, bool failed);
  void write(const BlockHash& row, Entry& entry);
  void lose_host_slot(const BlockHash& row);
  void lose_file_slot(const BlockHash& row);
  void forget(const BlockHash& row);

  RowStoreOptions options_;
  SlotPool host_, file_;
  std::unordered_map<BlockHash, Entry, BlockHasher> entries_;
  RowTransfer saving_{.kind = RowTransfer::Kind::kSave};    // the next one
  RowTransfer writing_{.kind = RowTransfer::Kind::kWrite};  // the next one
  RowTransfer sending_{.kind = RowTransfer::Kind::kSend};   // the next one
  std::vector<std::shared_ptr<const RowTransfer>> begun_;
  std::unordered_map<uint64_t, UnderWay> under_way_;
  std::map<uint64_t, OpenLoad> loads_;
  std::vector<Load> ended_;
  std::unordered_map<uint64_t, int> fetches_;  // transfers that each still waits for
  std::vector<uint64_t> ended_fetches_;
  int held_ = 0;  // slots, each as often as it is held
  uint64_t epoch_ = 0, last_transfer_ = 0, last_load_ = 0, last_fetch_ = 0;
  RowStoreStats stats_;
};

}  // namespace sluice
