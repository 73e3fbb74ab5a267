// Memory that the ranks of one machine share: a file without a name (memfd) that every rank maps. Each rank holds a
// record lock on its own byte of the file. The kernel releases the lock when the process ends, however it ends, so a
// missing lock tells the others that the rank is lost.
#pragma once

#include <cstddef>
#include <memory>

namespace sluice {

class SharedRegion {
 public:
  // Creates zeroed memory. Throws Error(kOutOfMemory).
  static std::unique_ptr<SharedRegion> create(size_t bytes);
  // Maps the memory behind a descriptor that this process inherited, and owns the descriptor from then on. Throws
  // Error(kInvalidRequest) if it is not such memory.
  static std::unique_ptr<SharedRegion> open(int fd);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_; }  // not inherited by new programs unless the caller passes it on

  // Holds the lock of `rank` until this process ends or closes the region. Throws Error(kInvalidRequest) if another
  // process holds it.
  void hold(int rank);
  // Returns whether another process holds the lock of `rank`.
  bool held(int rank) const;

 private:
  SharedRegion(int fd, std::byte* data, size_t size) : fd_(fd), data_(data), size_(size) {}

  int fd_;
  std::byte* data_;
  size_t size_;
};

}  // namespace sluice
