// A memfd, its mapping and its locks.
#include "parallel/shared_region.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "sluice/error.h"

namespace sluice {
namespace {

struct flock lock_of(int rank, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

std::byte* map(int fd, size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

}  // namespace

std::unique_ptr<SharedRegion> SharedRegion::create(size_t bytes) {
  const int fd = ::memfd_create("sluice-ranks", MFD_CLOEXEC);
  std::byte* data = nullptr;
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0) data = map(fd, bytes);
  if (data == nullptr) {
    const std::string reason = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    throw Error(ErrorCode::kOutOfMemory, fmt::format("{} bytes of shared memory for the ranks: {}", bytes, reason));
  }
  return std::unique_ptr<SharedRegion>(new SharedRegion(fd, data, bytes));
}

std::unique_ptr<SharedRegion> SharedRegion::open(int fd) {
  struct stat file = {};
  const bool sized = ::fstat(fd, &file) == 0 && file.st_size > 0;
  std::byte* data = sized ? map(fd, static_cast<size_t>(file.st_size)) : nullptr;
  if (data == nullptr) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("descriptor {} is not the shared memory of ranks", fd));
  }
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return std::unique_ptr<SharedRegion>(new SharedRegion(fd, data, static_cast<size_t>(file.st_size)));
}

SharedRegion::~SharedRegion() {
  ::munmap(data_, size_);
  ::close(fd_);
}

void SharedRegion::hold(int rank) {
  struct flock lock = lock_of(rank, F_WRLCK);
  if (::fcntl(fd_, F_SETLK, &lock) == 0) return;
  throw Error(ErrorCode::kInvalidRequest, fmt::format("another process is already rank {}", rank));
}

bool SharedRegion::held(int rank) const {
  struct flock lock = lock_of(rank, F_WRLCK);
  CHECK(::fcntl(fd_, F_GETLK, &lock) == 0, "F_GETLK: {}", std::strerror(errno));
  return lock.l_type != F_UNLCK;
}

}  // namespace sluice
