// A read-only memory-mapped file. Pages are loaded through the page cache on first access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice {

class MappedFile {
 public:
  // Throws Error(kCorruptFile) that names the path when it is not a readable regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  int64_t modified_ns() const { return modified_ns_; }  // modification time when opened, in ns since 1970

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int64_t modified_ns_ = 0;
};

}  // namespace sluice
