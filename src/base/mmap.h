// A read-only memory-mapped file. Pages are loaded through the page cache on first access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/file_mapping.h"

namespace sluice {

class MappedFile {
 public:
  // Throws Error(kCorruptFile) that names the path when it is not a readable regular file.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return mapping_.bytes(); }
  const std::string& path() const { return path_; }
  int64_t modified_ns() const { return modified_ns_; }  // modification time when opened, in ns since 1970
  // Throws Error(kCorruptFile) if the file became shorter. Call it after reading, before the results are used.
  void check() const { mapping_.check(); }

 private:
  std::string path_;
  FileMapping mapping_;
  int64_t modified_ns_ = 0;
};

}  // namespace sluice
