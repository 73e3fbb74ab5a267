// Replaces the functions that allocate, so that tests count memory and let it run out.
#include <malloc.h>

#include <cstdlib>
#include <new>

#include "server/allocations.h"

namespace {

using sluice::Allocations;

bool fails_now() {
  if (Allocations::exempt) return false;
  if (Allocations::none_left.load(std::memory_order_relaxed)) return true;
  if (Allocations::left.load(std::memory_order_relaxed) < 0) return false;
  return Allocations::left.fetch_sub(1) == 0;
}

void* allocate(size_t size) {
  void* memory = fails_now() ? nullptr : std::malloc(size);
  if (memory == nullptr || Allocations::uncounted) return memory;
  const auto bytes = static_cast<int64_t>(::malloc_usable_size(memory));
  const int64_t live = Allocations::live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = Allocations::peak.load(std::memory_order_relaxed);
  while (live > peak && !Allocations::peak.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
  return memory;
}

void release(void* memory) {
  if (memory != nullptr && !Allocations::uncounted) {
    Allocations::live.fetch_sub(static_cast<int64_t>(::malloc_usable_size(memory)), std::memory_order_relaxed);
  }
  std::free(memory);
}

}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  void* memory = allocate(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { release(memory); }

// Asio allocates its handlers with this function.
extern "C" void* aligned_alloc(size_t alignment, size_t size) noexcept {
  void* memory = nullptr;
  if (fails_now() || ::posix_memalign(&memory, alignment, size) != 0) return nullptr;
  return memory;
}

// The JSON library's constructors leak what they have built so far when an allocation in them fails; nothing outside
// the library can release it. LeakSanitizer calls this function where it runs, and else nobody does.
extern "C" const char* __lsan_default_suppressions() { return "leak:nlohmann::json"; }
