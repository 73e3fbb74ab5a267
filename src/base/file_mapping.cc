// The table of mappings and the signal handler that reads it. The handler makes system calls only: mmap and write.
#include "base/file_mapping.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "sluice/error.h"

namespace sluice {
namespace {

// A mapping as the handler sees it. Nobody touches the memory of a mapping while it is added or removed, so the handler
// needs no lock.
struct Slot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // 0: the slot is free
  std::atomic<int> protection{0};
  std::atomic<bool> shrank{false};
  std::atomic<const char*> path{nullptr};
};

// Checkpoints have up to a few hundred files. Mappings beyond this number are not watched.
constexpr size_t kSlots = 4096;

std::array<Slot, kSlots> slots;
std::atomic<size_t> slots_used{0};  // slots that were ever taken
std::mutex slots_mutex;             // for adding and removing
std::atomic<bool> any_damaged{false};
struct sigaction former {};

void write_text(const char* text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text));
}

Slot* slot_of(uintptr_t address) {
  const size_t used = slots_used.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    if (address >= slots[i].begin.load() && address < slots[i].end.load()) return &slots[i];
  }
  return nullptr;
}

// Replaces everything from the faulting page on, so that one fault is enough for most files. A file has no pages after
// its end.
bool replace_lost_pages(void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  Slot* slot = slot_of(at);
  if (slot == nullptr) return false;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t from = at / page * page;
  void* const to = reinterpret_cast<void*>(from);  // NOLINT(performance-no-int-to-ptr)
  if (::mmap(to, slot->end.load() - from, slot->protection.load(), MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    return false;
  }
  any_damaged.store(true);
  if (!slot->shrank.exchange(true)) {
    write_text("sluice: ");
    write_text(slot->path.load());
    write_text(": the file became shorter, or cannot be read, while it was in use\n");
  }
  return true;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool repaired = info->si_code > 0 && replace_lost_pages(info->si_addr);  // not sent by kill()
  errno = error;
  if (repaired) return;
  if ((former.sa_flags & SA_SIGINFO) != 0) return former.sa_sigaction(signal, info, context);
  if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) return former.sa_handler(signal);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaction(SIGBUS, &action, &former);
  });
}

}  // namespace

FileMapping::FileMapping(std::span<std::byte> bytes, int protection, std::string path)
    : bytes_(bytes), path_(std::move(path)) {
  install_handler();
  const std::scoped_lock lock(slots_mutex);
  for (size_t i = 0; i < kSlots && slot_ < 0; ++i) {
    if (slots[i].end.load() == 0) slot_ = static_cast<int>(i);
  }
  if (slot_ < 0) return;
  Slot& slot = slots[static_cast<size_t>(slot_)];
  slot.path.store(::strdup(path_.c_str()));
  slot.protection.store(protection);
  slot.shrank.store(false);
  slot.begin.store(reinterpret_cast<uintptr_t>(bytes.data()));
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  slot.end.store(slot.begin.load() + (bytes.size() + page - 1) / page * page);
  slots_used.store(std::max(slots_used.load(), static_cast<size_t>(slot_) + 1));
}

FileMapping::~FileMapping() { reset(); }

FileMapping::FileMapping(FileMapping&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})),
      path_(std::exchange(other.path_, {})),
      slot_(std::exchange(other.slot_, -1)) {}

FileMapping& FileMapping::operator=(FileMapping&& other) noexcept {
  if (this == &other) return *this;
  reset();
  bytes_ = std::exchange(other.bytes_, {});
  path_ = std::exchange(other.path_, {});
  slot_ = std::exchange(other.slot_, -1);
  return *this;
}

void FileMapping::reset() noexcept {
  if (slot_ >= 0) {
    const std::scoped_lock lock(slots_mutex);
    Slot& slot = slots[static_cast<size_t>(std::exchange(slot_, -1))];
    slot.end.store(0);
    std::free(const_cast<char*>(slot.path.exchange(nullptr)));  // strdup's memory
  }
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

void FileMapping::set_protection(int protection) {
  if (slot_ >= 0) slots[static_cast<size_t>(slot_)].protection.store(protection);
}

bool FileMapping::shrank() const { return slot_ >= 0 && slots[static_cast<size_t>(slot_)].shrank.load(); }

void FileMapping::check() const {
  if (!shrank()) return;
  throw Error(ErrorCode::kCorruptFile,
              fmt::format("{}: the file became shorter, or cannot be read, while it was in use", path_));
}

bool any_file_damaged() { return any_damaged.load(std::memory_order_acquire); }

void report_file_damage() { any_damaged.store(true, std::memory_order_release); }

}  // namespace sluice
