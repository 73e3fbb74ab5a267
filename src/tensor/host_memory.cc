// Allocates host memory in pages from the system.
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/cgroup.h"
#include "base/log.h"
#include "base/numa.h"
#include "sluice/error.h"
#include "tensor/memory.h"

namespace sluice {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHuge = 2u << 20;

bool huge(size_t bytes) { return bytes >= kHuge; }
size_t whole(size_t bytes, size_t page) { return (bytes + page - 1) / page * page; }

// Reads one line of /proc/meminfo in bytes. Returns SIZE_MAX when the line is absent.
size_t meminfo(std::string_view line) {
  std::ifstream info("/proc/meminfo");
  for (std::string key, rest; info >> key; std::getline(info, rest)) {
    size_t kib = 0;
    if (key == line && info >> kib) return kib * 1024;
  }
  return SIZE_MAX;
}

class HostMemory : public Memory {
 public:
  std::byte* allocate(size_t bytes) override {
    if (bytes > PTRDIFF_MAX - kHuge) {
      throw Error(ErrorCode::kOutOfMemory, fmt::format("cannot allocate {} of host memory", format_bytes(bytes)));
    }
    const size_t size = whole(bytes, huge(bytes) ? kHuge : kPage), mapped = huge(bytes) ? size + kHuge : size;
    void* address = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("cannot allocate {} of host memory: {}", format_bytes(bytes), std::strerror(errno)));
    }
    auto* data = static_cast<std::byte*>(address);
    if (!huge(bytes)) return data;
    // The block starts at a huge page. The rest of the mapping before and after it is returned.
    const size_t head = (kHuge - reinterpret_cast<uintptr_t>(data) % kHuge) % kHuge;
    if (head > 0) ::munmap(data, head);
    if (head < kHuge) ::munmap(data + head + size, kHuge - head);
    ::madvise(data + head, size, MADV_HUGEPAGE);
    if (const int parts = memory_parts(); parts > 1 && !spread_over_nodes(data + head, size, parts)) {
      log::warning("--numa: cannot place memory on nodes: mbind: {}", std::strerror(errno));
      set_memory_parts(1);
    }
    return data + head;
  }
  void release(std::byte* data, size_t bytes) noexcept override {
    ::munmap(data, whole(bytes, huge(bytes) ? kHuge : kPage));
  }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  bool host_accessible() const override { return true; }
  size_t available() const override { return std::min(meminfo("MemAvailable:"), cgroup_memory().available); }
  size_t total() const override { return std::min(meminfo("MemTotal:"), cgroup_memory().total); }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace sluice
