// An allocator in place of the C library's. Containers that are ordered by address would otherwise differ from run to
// run. Sizes are rounded up to classes; a freed block is used again for its class.
#include "simulation/machine/memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "simulation/machine/machine.h"
#include "simulation/machine/system.h"

namespace sluice::simulation {
namespace {

MemoryUse use;
uint64_t stop_at = 0, refuse_at = 0;

constexpr uintptr_t kBase = 0x2000'0000'0000;
constexpr size_t kSpace = size_t{64} << 30;  // of one arena; reserved, not used
constexpr size_t kAlign = 16;

// Lies before every block.
struct Header {
  uint32_t size_class;
  uint16_t arena;
  uint16_t counted;  // 0: not; kFaulty: for a faulty thread, too
  uint64_t size : 37;
  uint64_t number : 27;  // of the allocation, if it is counted
};
static_assert(sizeof(Header) == kAlign);

constexpr uint16_t kCounted = 1, kFaulty = 2;

struct Free {
  Free* next;
};

// Classes: multiples of 16 up to 256, then four per power of two.
constexpr size_t kSmall = 256;
uint32_t class_of(size_t size) {
  if (size <= kSmall) return static_cast<uint32_t>((size + kAlign - 1) / kAlign);
  const int power = std::bit_width(size - 1);  // size <= 1 << power
  const size_t quarter = size_t{1} << (power - 3);
  const auto quarters = (size - (size_t{1} << (power - 1)) + quarter - 1) / quarter;  // 1 .. 4
  return static_cast<uint32_t>(kSmall / kAlign + static_cast<size_t>(power - 9) * 4 + quarters);
}
size_t size_of(uint32_t size_class) {
  constexpr uint32_t kClasses = kSmall / kAlign;
  if (size_class <= kClasses) return size_class * kAlign;
  const uint32_t above = size_class - kClasses - 1;
  const size_t low = size_t{kSmall} << (above / 4);
  return low + (above % 4 + 1) * (low / 4);
}

// One arena for runs and one for what comes before and between them, which therefore does not change a run.
struct Arena {
  char *next, *end;
  Free* free_blocks[256];
};
Arena arenas[2];

char* fresh(int arena, size_t size) {
  Arena& from = arenas[arena];
  if (from.next == nullptr) {
    const auto at = static_cast<long>(kBase + static_cast<uintptr_t>(arena) * kSpace);
    if (system_call(SYS_mmap, at, kSpace, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != at) {
      std::abort();
    }
    from.next = reinterpret_cast<char*>(at);
    from.end = from.next + kSpace;
  }
  char* out = from.next;
  from.next += size;
  if (from.next > from.end) std::abort();
  return out;
}

bool refuse() {
  Machine* machine = Machine::made();
  if (machine == nullptr || !machine->started()) return false;
  if (machine->weather().no_memory == 0 && refuse_at == 0) return false;
  const Fiber& fiber = machine->current();
  if (!fiber.faulty || fiber.inside > 0) return false;
  const bool chosen = refuse_at > 0 && use.allocations + 1 >= refuse_at;
  if (!chosen && !machine->chance(machine->weather().no_memory)) return false;
  refuse_at = 0;
  ++use.refused;
  return true;
}

void* allocate(size_t size) {
  constexpr size_t kMost = size_t{1} << 36;
  if (size > kMost || refuse()) {
    errno = ENOMEM;
    return nullptr;
  }
  const uint32_t size_class = class_of(size == 0 ? 1 : size);
  Machine* machine = Machine::made();
  const bool running = machine != nullptr && machine->started();
  Header* header = nullptr;
  if (Free*& first = arenas[running].free_blocks[size_class]; first != nullptr) {
    header = reinterpret_cast<Header*>(first) - 1;
    first = first->next;
  } else {
    header = reinterpret_cast<Header*>(fresh(running, sizeof(Header) + size_of(size_class)));
  }
  const bool counted = running && machine->current().inside == 0;
  const uint16_t how = !counted ? 0 : machine->current().faulty ? kFaulty : kCounted;
  *header = {size_class, running, how, size, 0};
  if (header->counted != 0) {
    header->number = ++use.allocations;
    if (use.allocations == stop_at) std::raise(SIGTRAP);
    ++use.blocks;
    use.bytes += static_cast<int64_t>(size);
    if (how == kFaulty) use.faulty_bytes += static_cast<int64_t>(size);
  }
  return header + 1;
}

// Blocks with a wider alignment (below 64 KiB) have a header of their own, which leads to the block's beginning.
constexpr uint32_t kAligned = UINT32_MAX;

void* allocate_aligned(size_t alignment, size_t size) {
  if (alignment <= kAlign) return allocate(size);
  auto* block = static_cast<char*>(allocate(size + alignment + sizeof(Header)));
  if (block == nullptr) return nullptr;
  const auto at = (reinterpret_cast<uintptr_t>(block) + sizeof(Header) + alignment - 1) & ~(alignment - 1);
  auto* out = reinterpret_cast<Header*>(at);
  out[-1] = {kAligned, 0, static_cast<uint16_t>(at - reinterpret_cast<uintptr_t>(block)), size, 0};
  return out;
}

void release(void* memory) {
  if (memory == nullptr) return;
  Header* header = static_cast<Header*>(memory) - 1;
  if (header->size_class == kAligned) return release(static_cast<char*>(memory) - header->counted);
  if (header->counted != 0) {
    --use.blocks;
    use.bytes -= static_cast<int64_t>(header->size);
    if (header->counted == kFaulty) use.faulty_bytes -= static_cast<int64_t>(header->size);
    header->counted = 0;
  }
  auto* block = static_cast<Free*>(memory);
  Free*& first = arenas[header->arena].free_blocks[header->size_class];
  block->next = first;
  first = block;
}

}  // namespace

MemoryUse memory_use() { return use; }

void refuse_allocation(uint64_t number) { refuse_at = number; }

void stop_at_allocation(uint64_t number) { stop_at = number; }

std::vector<uint64_t> blocks_since(uint64_t since) {
  std::vector<uint64_t> out;
  constexpr size_t kMost = 10;
  const Inside inside;
  char* end = arenas[1].next;
  for (char* at = reinterpret_cast<char*>(kBase + kSpace); at < end && out.size() < kMost;) {
    const auto* header = reinterpret_cast<const Header*>(at);
    if (header->counted != 0 && header->number > since) out.push_back(header->number);
    at += sizeof(Header) + size_of(header->size_class);
  }
  return out;
}

}  // namespace sluice::simulation

using namespace sluice::simulation;

extern "C" {

void* malloc(size_t size) noexcept { return allocate(size); }
void free(void* memory) noexcept { release(memory); }
void* calloc(size_t count, size_t size) noexcept {
  size_t bytes = 0;
  void* memory = __builtin_mul_overflow(count, size, &bytes) ? nullptr : allocate(bytes);
  return memory == nullptr ? nullptr : std::memset(memory, 0, bytes);
}
size_t malloc_usable_size(void* memory) noexcept {
  return memory == nullptr ? 0 : (static_cast<Header*>(memory) - 1)->size;
}
void* realloc(void* memory, size_t size) noexcept {
  void* to = allocate(size);
  if (to == nullptr || memory == nullptr) return to;
  const size_t before = malloc_usable_size(memory);
  std::memcpy(to, memory, before < size ? before : size);
  release(memory);
  return to;
}
void* aligned_alloc(size_t alignment, size_t size) noexcept { return allocate_aligned(alignment, size); }
void* memalign(size_t alignment, size_t size) noexcept { return allocate_aligned(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) noexcept {
  *memory = allocate_aligned(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

}  // extern "C"
