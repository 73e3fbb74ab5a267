// Maps files with POSIX mmap.
#include "base/mmap.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "sluice/error.h"

namespace sluice {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: do not wait for a pipe's writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", path, std::strerror(errno)));
  struct stat info {};
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const size_t size = regular ? static_cast<size_t>(info.st_size) : 0;
  modified_ns_ = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  void* mapped = MAP_FAILED;
  if (size > 0) mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (!regular) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: not a regular file", path));
  if (size == 0) return;  // empty span: readers report what is missing
  if (mapped == MAP_FAILED)
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: mmap: {}", path, std::strerror(error)));
  mapping_ = FileMapping({static_cast<std::byte*>(mapped), size}, PROT_READ, path);
}

}  // namespace sluice
