// Collectives over shared memory. Each rank has a counter of the rounds it has published, and two outboxes that it uses
// in turn. A rank that writes an outbox again knows from the round between that all ranks have read the old contents.
// Waiting ranks spin for a while, because the others follow within microseconds, and then sleep in the kernel (futex).
#include "parallel/communicator.h"

#include <fmt/core.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/check.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr uint32_t kMagic = 0x534c5250;  // layout of the region, version 1
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr long kCheckEveryNs = 100'000'000;  // between two looks at whether a rank that is waited for still exists
constexpr size_t kMessageBytes = 1024;

enum State : uint32_t { kAbsent, kRunning, kLeft };

void sleep_on(const std::atomic<uint32_t>& word, uint32_t value) {
  const timespec limit{.tv_sec = 0, .tv_nsec = kCheckEveryNs};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void wake(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct Communicator::Header {
  uint32_t magic = 0;
  int32_t size = 0;
  uint32_t spins = 0;                // whether waiting ranks spin first: no if they must share CPUs
  std::atomic<int32_t> lost{0};      // rank + 1 of the first lost rank; 0: none
  std::atomic<uint32_t> written{0};  // `message` is complete
  char message[kMessageBytes] = {};
};

struct alignas(128) Communicator::Slot {
  std::atomic<uint32_t> round{0};    // rounds that the rank has published; others sleep on it
  std::atomic<uint32_t> waiters{0};  // ranks that may sleep on it
  std::atomic<uint32_t> state{kAbsent};
  uint64_t tags[2] = {};  // of the last two rounds
};

namespace {

constexpr size_t kSlotsAt = 4096;  // after the header
constexpr size_t kBoxesAt = kSlotsAt + size_t{Communicator::kMostRanks} * 128;

size_t region_bytes(int size) { return kBoxesAt + static_cast<size_t>(size) * 2 * Communicator::kOutboxBytes; }

}  // namespace

std::shared_ptr<SharedRegion> Communicator::make_region(int size) {
  static_assert(sizeof(Header) <= kSlotsAt && sizeof(Slot) == 128 && std::atomic<uint32_t>::is_always_lock_free);
  CHECK(size >= 1 && size <= kMostRanks, "{} ranks", size);
  std::shared_ptr<SharedRegion> region = SharedRegion::create(region_bytes(size));
  auto* header = new (region->data()) Header;
  header->magic = kMagic;
  header->size = size;
  header->spins = static_cast<unsigned>(size) <= std::thread::hardware_concurrency() ? 1 : 0;
  for (int i = 0; i < size; ++i) new (region->data() + kSlotsAt + static_cast<size_t>(i) * sizeof(Slot)) Slot;
  return region;
}

std::unique_ptr<Communicator> Communicator::create(int size) {
  return std::unique_ptr<Communicator>(new Communicator(make_region(size), 0, true));
}

std::unique_ptr<Communicator> Communicator::join(int fd, int rank) {
  std::shared_ptr<SharedRegion> region = SharedRegion::open(fd);
  const auto* header = reinterpret_cast<const Header*>(region->data());
  const bool ours = region->size() >= kBoxesAt && header->magic == kMagic && header->size >= 1 &&
                    header->size <= kMostRanks && region->size() == region_bytes(header->size);
  if (!ours) throw Error(ErrorCode::kInvalidRequest, fmt::format("descriptor {} holds no ranks of this version", fd));
  if (rank < 0 || rank >= header->size) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("rank {} of {} ranks", rank, header->size));
  }
  return std::unique_ptr<Communicator>(new Communicator(std::move(region), rank, true));
}

std::vector<std::unique_ptr<Communicator>> Communicator::of_threads(int size) {
  const std::shared_ptr<SharedRegion> region = make_region(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int i = 0; i < size; ++i) ranks.emplace_back(new Communicator(region, i, false));
  return ranks;
}

Communicator::Communicator(std::shared_ptr<SharedRegion> region, int rank, bool processes)
    : region_(std::move(region)), rank_(rank), size_(header().size), processes_(processes) {
  if (processes_) region_->hold(rank_);
  slot(rank_).state.store(kRunning);
}

Communicator::~Communicator() {
  slot(rank_).state.store(kLeft);
  wake_all();
}

Communicator::Slot& Communicator::slot(int rank) const {
  return *reinterpret_cast<Slot*>(region_->data() + kSlotsAt + static_cast<size_t>(rank) * sizeof(Slot));
}

std::byte* Communicator::box(int rank, uint32_t round) const {
  const size_t index = 2 * static_cast<size_t>(rank) + (round & 1);
  return region_->data() + kBoxesAt + index * kOutboxBytes;
}

bool Communicator::joined(int rank) const { return slot(rank).state.load() != kAbsent; }

void Communicator::publish(uint64_t tag) {
  Slot& mine = slot(rank_);
  ++round_;
  mine.tags[round_ & 1] = tag;
  mine.round.store(round_);
  if (mine.waiters.load() != 0) wake(mine.round);
  for (int other = 0; other < size_; ++other) {
    if (other != rank_) wait_for(other);
  }
  for (int other = 0; other < size_; ++other) {
    if (slot(other).tags[round_ & 1] == tag) continue;
    const std::string message = fmt::format("it computes something else than rank {}", rank_);
    report(other, message);
    throw_lost();
  }
}

void Communicator::wait_for(int rank) const {
  Slot& other = slot(rank);
  uint32_t seen = 0;
  const auto arrived = [&] {
    seen = other.round.load();  // ordered after the announcement in `waiters`
    return static_cast<int32_t>(seen - round_) >= 0;
  };
  if (header().spins != 0) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 64; ++i) {
        if (arrived()) return;
        _mm_pause();
      }
    } while (std::chrono::steady_clock::now() < deadline);
  }
  other.waiters.fetch_add(1);
  while (!arrived() && header().lost.load() == 0 && !gone(rank)) sleep_on(other.round, seen);
  other.waiters.fetch_sub(1);
  if (arrived()) return;
  if (header().lost.load() == 0) report(rank, "its process ended");
  throw_lost();
}

bool Communicator::gone(int rank) const {
  const uint32_t state = slot(rank).state.load();
  return state == kLeft || (state == kRunning && processes_ && rank != rank_ && !region_->held(rank));
}

void Communicator::report(int rank, std::string_view message) const {
  int32_t none = 0;
  if (header().lost.compare_exchange_strong(none, rank + 1)) {
    const size_t bytes = std::min(message.size(), kMessageBytes - 1);
    std::memcpy(header().message, message.data(), bytes);
    header().message[bytes] = '\0';
    header().written.store(1);
  }
  wake_all();
}

void Communicator::wake_all() const {
  for (int i = 0; i < size_; ++i) wake(slot(i).round);
}

void Communicator::fail(std::string_view message) { report(rank_, message); }

std::optional<std::string> Communicator::lost() const {
  for (int other = 0; other < size_ && header().lost.load() == 0; ++other) {
    if (other != rank_ && gone(other)) report(other, "its process ended");
  }
  const int32_t lost = header().lost.load();
  if (lost == 0) return std::nullopt;
  const std::string_view why = header().written.load() != 0 ? header().message : "its process ended";
  return fmt::format("rank {} of {} was lost: {}", lost - 1, size_, why);
}

void Communicator::throw_lost() const { throw Error(ErrorCode::kInternal, *lost()); }

void Communicator::barrier() { publish(1); }

void Communicator::all_reduce_sum(std::span<float> values) {
  constexpr size_t kMost = kOutboxBytes / sizeof(float);
  for (size_t begin = 0; begin < values.size(); begin += kMost) {
    const std::span<float> piece = values.subspan(begin, std::min(kMost, values.size() - begin));
    std::memcpy(outbox(), piece.data(), piece.size_bytes());
    publish(uint64_t{2} << 32 | piece.size());
    for (int other = 0; other < size_; ++other) {
      const auto* from = reinterpret_cast<const float*>(inbox(other));
      for (size_t i = 0; i < piece.size(); ++i) piece[i] = other == 0 ? from[i] : piece[i] + from[i];
    }
  }
}

void Communicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  CHECK(all.size() == mine.size() * static_cast<size_t>(size_), "{} bytes of {} ranks", mine.size(), size_);
  for (size_t begin = 0; begin < mine.size(); begin += kOutboxBytes) {
    const size_t bytes = std::min(kOutboxBytes, mine.size() - begin);
    std::memcpy(outbox(), mine.data() + begin, bytes);
    publish(uint64_t{3} << 32 | bytes);
    for (int other = 0; other < size_; ++other) {
      std::memcpy(all.data() + static_cast<size_t>(other) * mine.size() + begin, inbox(other), bytes);
    }
  }
}

void Communicator::broadcast(std::vector<std::byte>& message, int root) {
  // The first piece begins with the size of the whole.
  for (size_t begin = 0, total = message.size(), head = sizeof total; begin < total || head > 0; head = 0) {
    if (rank_ == root) {
      const size_t bytes = std::min(kOutboxBytes - head, total - begin);
      if (head > 0) std::memcpy(outbox(), &total, head);
      if (bytes > 0) std::memcpy(outbox() + head, message.data() + begin, bytes);
    }
    publish(uint64_t{4} << 32 | static_cast<uint64_t>(root) << 1 | (head > 0 ? 1 : 0));
    if (head > 0) std::memcpy(&total, inbox(root), head);
    const size_t bytes = std::min(kOutboxBytes - head, total - begin);
    if (rank_ != root) {
      message.resize(total);
      if (bytes > 0) std::memcpy(message.data() + begin, inbox(root) + head, bytes);
    }
    begin += bytes;
  }
}

}  // namespace sluice
