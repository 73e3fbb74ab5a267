// Packed weights in a file: written when a model is loaded for the first time, mapped by later loads, which then pack
// nothing and read no matrix of the checkpoint. Mapped weights are pages of the file: processes share them, and the
// kernel drops them where memory is short and reads them again.
//
// The file: a page of header (magic, sizes, hashes), then the weights in the order in which the model's constructors
// ask for them, each on a page of its own. Its name is the hash of what the contents depend on.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/thread_pool.h"
#include "sluice/error.h"

namespace sluice {

// The file cannot be made or written; weights can still be packed into memory.
struct PackedFileError : Error {
  using Error::Error;
};

struct PackedFileSpec {
  std::string folder;         // made, when it is not there
  std::string contents;       // everything that the weights depend on but the program
  std::string program;        // which build packs them: base/build_id.h
  std::vector<size_t> sizes;  // of the weights, in order
};

class PackedFile {
 public:
  // Maps the file if it is there and whole; else begins a new one, which nobody sees before finish(), and logs why one
  // that was there is not used. Another process that is writing it is waited for. A file that is there may be
  // read-only. Throws PackedFileError; no file is left behind then.
  explicit PackedFile(PackedFileSpec spec);
  ~PackedFile();  // what was not finished is deleted
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  bool filled() const { return filled_; }  // the weights are there and may only be read
  // Memory of the next weight, aligned to a page; zeroed unless filled. `bytes` must be what the spec says.
  std::byte* next(size_t bytes);
  // After the last weight of a file that was not filled: to the disk, and under its name. Throws PackedFileError; the
  // weights must not be used then.
  void finish();
  // Brings all of it into memory, the share of each part of the pool from its threads.
  void read_ahead(ThreadPool& pool) const;

  const std::string& path() const { return path_; }
  size_t bytes() const { return bytes_; }  // of the file

 private:
  bool map();
  void begin();
  std::string refusal() const;
  Sha256 sample() const;
  [[noreturn]] void fail(const std::string& what, int error) const;
  void discard() noexcept;

  PackedFileSpec spec_;
  std::vector<size_t> offsets_;  // of the weights
  std::string path_, unfinished_;
  std::string refused_;  // why the file that was there is not used
  int fd_ = -1;          // of the unfinished file, locked
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t next_ = 0;  // weight
  bool filled_ = false;
};

}  // namespace sluice
