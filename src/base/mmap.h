// A read-only memory-mapped file. Pages come from the page cache when they are first read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice {

class MappedFile {
 public:
  // Throws Error(kCorruptFile) that names the path when it is no readable regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  int64_t modified_ns() const { return modified_ns_; }  // since 1970, when it was opened

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int64_t modified_ns_ = 0;
};

}  // namespace sluice
