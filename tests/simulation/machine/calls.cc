// The kernel's files and memory maps, with calls that fail when they are told to. Sockets and threads ask
// refuses_call() in their own files.
#include "simulation/machine/calls.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "simulation/machine/machine.h"
#include "simulation/machine/network.h"
#include "simulation/machine/system.h"

namespace sluice::simulation {
namespace {

CallUse use;
uint64_t refuse_at = 0;

long argument(const char* text) { return reinterpret_cast<long>(text); }

int open_file(int folder, const char* path, int flags, mode_t mode) {
  if (refuses_call(EMFILE)) return -1;
  return static_cast<int>(system_call(SYS_openat, folder, argument(path), flags, static_cast<long>(mode)));
}

int status_of(int folder, const char* path, struct stat* out, int flags) {
  return static_cast<int>(
      system_call(SYS_newfstatat, folder, argument(path), reinterpret_cast<long>(out), static_cast<long>(flags)));
}

}  // namespace

CallUse call_use() { return use; }

void refuse_call(uint64_t number) { refuse_at = number; }

bool refuses_call(int error) {
  Machine* machine = Machine::made();
  if (machine == nullptr || !machine->started()) return false;
  const Fiber& fiber = machine->current();
  if (!fiber.faulty || fiber.inside > 0) return false;
  ++use.calls;
  const bool chosen = refuse_at > 0 && use.calls >= refuse_at;
  if (!chosen && !machine->chance(machine->weather().no_call)) return false;
  refuse_at = 0;
  ++use.refused;
  errno = error;
  return true;
}

int open_descriptors() {
  constexpr int kMost = 1024;
  int count = open_files();
  for (int fd = 0; fd < kMost; ++fd) count += system_call(SYS_fcntl, fd, F_GETFD) >= 0;
  return count;
}

}  // namespace sluice::simulation

using namespace sluice::simulation;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const auto mode = va_arg(list, mode_t);
  va_end(list);
  return open_file(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const auto mode = va_arg(list, mode_t);
  va_end(list);
  return open_file(folder, path, flags, mode);
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  if (refuses_call(EIO)) return -1;
  return system_call(SYS_pread64, fd, reinterpret_cast<long>(data), static_cast<long>(size), offset);
}

int stat(const char* path, struct stat* out) noexcept {
  return refuses_call(EIO) ? -1 : status_of(AT_FDCWD, path, out, 0);
}
int lstat(const char* path, struct stat* out) noexcept {
  return refuses_call(EIO) ? -1 : status_of(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
int fstat(int fd, struct stat* out) noexcept { return refuses_call(EIO) ? -1 : status_of(fd, "", out, AT_EMPTY_PATH); }

void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  if (refuses_call(ENOMEM)) return MAP_FAILED;
  const long mapped =
      system_call(SYS_mmap, reinterpret_cast<long>(address), static_cast<long>(size), protection, flags, fd, offset);
  return reinterpret_cast<void*>(mapped);  // -1 is MAP_FAILED
}
int msync(void* address, size_t size, int flags) {
  if (refuses_call(EIO)) return -1;
  return static_cast<int>(system_call(SYS_msync, reinterpret_cast<long>(address), static_cast<long>(size), flags));
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (refuses_call(ENOSPC)) return -1;
  return static_cast<int>(system_call(SYS_mkdir, argument(path), static_cast<long>(mode)));
}
int rename(const char* from, const char* to) noexcept {
  if (refuses_call(ENOSPC)) return -1;
  return static_cast<int>(system_call(SYS_rename, argument(from), argument(to)));
}
int ftruncate(int fd, off_t size) noexcept {
  return refuses_call(ENOSPC) ? -1 : static_cast<int>(system_call(SYS_ftruncate, fd, size));
}
int posix_fallocate(int fd, off_t offset, off_t size) {  // returns its error
  if (refuses_call(ENOSPC)) return ENOSPC;
  return system_call(SYS_fallocate, fd, 0, offset, size) == 0 ? 0 : errno;
}
int fsync(int fd) { return refuses_call(EIO) ? -1 : static_cast<int>(system_call(SYS_fsync, fd)); }
int flock(int fd, int operation) noexcept {
  if ((operation & LOCK_UN) == 0 && refuses_call(ENOLCK)) return -1;
  return static_cast<int>(system_call(SYS_flock, fd, operation));
}

}  // extern "C"
