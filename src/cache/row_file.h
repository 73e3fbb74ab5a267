// A file that keeps rows of the prefix cache from one run of the program to the next. It has a table of slots, then the
// bytes of all slots. Which row is in which slot is the caller's choice (cache/row_store.h).
//
// A slot may be torn, because the program was killed or the machine stopped while it was written. Each entry of the
// table therefore has a checksum of itself and one of the row's bytes; a row is read only if both are right. Entries
// also have the number of the epoch in which they were written. A new epoch makes all earlier entries invalid at once.
//
// The file is locked while it is open. It is readable by its owner alone, as it has what prompts were made of.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/block_pool.h"

namespace sluice {

// Thread-safe for different slots.
class RowFile {
 public:
  // Opens the file for rows of `row_bytes` bytes in `folder`, or makes one of about `bytes` bytes. `identity` says what
  // the rows' values depend on besides their hash: it is part of the file's name. An existing file is begun anew if its
  // size is another one or it is damaged. Throws Error(kInvalidRequest) if the folder cannot be used, another process
  // still has the file after `patience`, or it would be larger than the free disk space.
  RowFile(const std::string& folder, const std::string& identity, size_t row_bytes, size_t bytes,
          std::chrono::milliseconds patience = {});
  ~RowFile();
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  const std::string& path() const { return path_; }
  int slots() const { return slots_; }

  struct Kept {
    BlockHash row;
    int slot = 0;
  };
  // The rows that the file had when it was opened, the oldest first. They may be torn nevertheless; read() tells.
  std::vector<Kept> take_kept() { return std::move(kept_); }

  // Each returns false if that failed: the disk is full, a file system's error, a row that is torn or is another one.
  bool write(int slot, const BlockHash& row, uint64_t epoch, std::span<const std::byte> bytes);
  bool read(int slot, const BlockHash& row, std::span<std::byte> bytes);
  // Makes all entries of earlier epochs invalid. Epochs count from 0 in each run.
  bool begin_epoch(uint64_t epoch);

 private:
  void lock(std::chrono::milliseconds patience) const;
  void create(size_t bytes);
  bool load_table();
  size_t table_bytes() const;
  size_t place_of(int slot) const;
  bool write_header();

  std::string path_;
  size_t row_bytes_;
  int fd_ = -1, slots_ = 0;
  uint64_t first_epoch_ = 1;          // of this run
  std::atomic<uint64_t> epoch_{1};    // in the file
  std::atomic<uint64_t> written_{0};  // counts rows, over all runs
  std::vector<Kept> kept_;
};

}  // namespace sluice
