// Packed weights in a file. The first load of a model writes the file; later loads map it, pack nothing and read no
// matrix of the checkpoint. Mapped weights are pages of the file: processes share them, and the kernel can drop them
// under memory pressure and read them again.
//
// Layout: one page of header (magic, sizes, hashes), then the checksums of all blocks, then the weights in the order in
// which the model's constructors ask for them. Checksums and weights start on a page. A block is 1 MiB of a weight, or
// its rest. The file's name is a hash of everything its contents depend on.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/file_mapping.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "sluice/error.h"

namespace sluice {

// The file cannot be created or written. Weights can still be packed into memory.
struct PackedFileError : Error {
  using Error::Error;
};

// A weight that was read from the file does not match its checksums. No weight of the file may be used.
struct PackedFileDamaged : Error {
  PackedFileDamaged(const std::string& what, bool deleted) : Error(ErrorCode::kCorruptFile, what), deleted(deleted) {}
  bool deleted;  // the file is gone, so that the next PackedFile of its name is written anew
};

// When the checksums of an existing file are compared with its weights. kByReader: in read().
enum class PackedFileCheck { kOnLoad, kByReader, kInBackground, kOff };

struct PackedFileSpec {
  std::string folder;         // created if it does not exist
  std::string contents;       // everything that the weights depend on, except the program
  std::string program;        // identifies the build that packs them: base/build_id.h
  std::vector<size_t> sizes;  // bytes of each weight, in order
  PackedFileCheck check = PackedFileCheck::kOnLoad;
  ThreadPool* pool = nullptr;  // compares checksums; null: the calling thread does
  // The weights come from a device, while the model serves. The file then gets its room from reserve(), not at once,
  // and another process that is writing it is a PackedFileError instead of being waited for.
  bool from_device = false;
};

class PackedFile {
 public:
  // Maps the file if it exists and is intact, as far as spec.check says. Otherwise logs why an existing file is not
  // used and begins a new one, which nobody sees before finish(). Waits for another process that is writing the file.
  // An existing file may be read-only. Throws PackedFileError and leaves no file behind then.
  explicit PackedFile(PackedFileSpec spec);
  ~PackedFile();  // deletes an unfinished file
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  bool filled() const { return filled_; }  // the weights are there and read-only
  // Gives the file its room on the disk, before the first weight. Throws PackedFileError.
  void reserve();
  // Memory of the next weight, page-aligned; zeroed unless filled. `bytes` must match the spec.
  std::byte* next(size_t bytes);
  // Passes over the next weight, for a later read() of it. Returns its number.
  size_t skip(size_t bytes);
  // Reads a part of a weight of a filled file: some of its blocks. With PackedFileCheck::kByReader, throws
  // PackedFileDamaged if they do not match their checksums, and deletes the file. Thread-safe.
  void read(size_t weight, size_t begin, std::span<std::byte> into) const;
  static constexpr size_t kBlock = size_t{1} << 20;  // bytes under one checksum
  // Writes a part of a weight to disk, and returns when it is there.
  void write_out(std::span<const std::byte> part) const;
  // Call after the last weight of a file that was not filled. Writes the file to disk and gives it its name. Throws
  // PackedFileError; the weights must not be used then. `pool` computes checksums; null: the calling thread does.
  void finish(ThreadPool* pool);
  // Reads the whole file into memory. The threads of each part of the pool read that part's share.
  void read_ahead(ThreadPool& pool) const;
  // With PackedFileCheck::kInBackground, starts a thread that compares the checksums of a filled file. A damaged file
  // is deleted, so that the next start packs again, and check() fails from then on.
  void start_check();
  // Throws Error(kCorruptFile) if the file became shorter or the thread of start_check() found it damaged. Weights that
  // were read before must not be used then.
  void check() const;

  const std::string& path() const { return path_; }
  size_t bytes() const { return bytes_; }  // size of the file

 private:
  bool map();
  void begin();
  std::string refusal() const;
  std::span<uint32_t> checksums() const;
  template <class F>
  void for_each_block(ThreadPool* pool, F&& body) const;
  std::optional<size_t> damaged_weight() const;
  [[noreturn]] void report_damage(size_t weight) const;
  [[noreturn]] void fail(const std::string& what, int error) const;
  void discard() noexcept;

  PackedFileSpec spec_;
  std::vector<size_t> offsets_;       // offset of each weight
  std::vector<size_t> first_blocks_;  // index of the first block of each weight
  std::string path_, unfinished_;
  std::string refused_;  // why an existing file is not used
  int fd_ = -1;          // the unfinished file, locked
  int filled_fd_ = -1;   // the filled file, for read()
  FileMapping mapping_;
  size_t bytes_ = 0;
  size_t blocks_ = 0;
  size_t next_ = 0;  // index of the next weight
  bool filled_ = false;
  std::atomic<bool> damaged_{false};
  std::jthread checker_;
};

}  // namespace sluice
