// Collectives over shared memory. Each rank has a counter of the rounds it has published, and two outboxes that it uses
// in turn. A rank that writes an outbox again knows from the round between that all ranks have read the old contents.
// Messages to one rank go through a ring of boxes that belongs to the sender.
// Ranks of other machines have slots and outboxes here, too, which the leader of this machine fills.
// Waiting ranks spin for a while, because the others follow within microseconds, and then sleep in the kernel (futex).
#include "parallel/communicator.h"

#include <fcntl.h>
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
#include "parallel/backoff.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr uint32_t kMagic = 0x534c5252;  // layout of the region, version 3
constexpr auto kSpin = std::chrono::microseconds(100);
constexpr long kCheckEveryNs = 100'000'000;  // between two looks at whether a rank that is waited for still exists
constexpr size_t kMessageBytes = 1024;
constexpr auto kStartLimit = std::chrono::seconds(30);
// MPI sends what is below its limit for eager messages (64 KiB over TCP) even if the receiver is busy.
constexpr size_t kLinkPiece = size_t{32} << 10;

enum State : uint32_t { kAbsent, kRunning, kLeft };

void sleep_on(const std::atomic<uint32_t>& word, uint32_t value) {
  const timespec limit{.tv_sec = 0, .tv_nsec = kCheckEveryNs};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

uint64_t letter_tag(int to, size_t bytes) { return static_cast<uint64_t>(to) << 32 | bytes; }

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
  uint64_t tags[2] = {};   // of the last two rounds
  uint64_t bytes[2] = {};  // that were shown in them
};

struct alignas(128) Communicator::Mailbox {
  std::atomic<uint32_t> sent{0};  // pieces that the rank has written; the receiver sleeps on it
  std::atomic<uint32_t> receivers{0};
  std::atomic<uint32_t> received{0};  // pieces that were read; the sender sleeps on it
  std::atomic<uint32_t> senders{0};
  uint64_t tags[kLetters] = {};  // receiver and size of each piece
};

namespace {

constexpr size_t kRanks = Communicator::kMostRanks;
constexpr size_t kSlotsAt = 4096;   // after the header
constexpr size_t kConnections = 3;  // of a rank: to all ranks, to its group and to a part of that
constexpr size_t kMailboxesAt = kSlotsAt + kConnections * kRanks * 128;
constexpr size_t kBoxesAt = kMailboxesAt + kRanks * 256;

// Each rank has two outboxes for each connection, and the ring of its messages. Pages that are never touched take no
// memory.
constexpr size_t kBoxesOfRank = 2 * kConnections + Communicator::kLetters;

size_t region_bytes(int size) {
  return kBoxesAt + static_cast<size_t>(size) * kBoxesOfRank * Communicator::kOutboxBytes;
}

}  // namespace

std::shared_ptr<SharedRegion> Communicator::make_region(int size, int on_this_machine) {
  static_assert(sizeof(Header) <= kSlotsAt && sizeof(Slot) == 128 && sizeof(Mailbox) == 256);
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  CHECK(size >= 1 && size <= kMostRanks, "{} ranks", size);
  std::shared_ptr<SharedRegion> region = SharedRegion::create(region_bytes(size));
  auto* header = new (region->data()) Header;
  header->magic = kMagic;
  header->size = size;
  header->spins = static_cast<unsigned>(on_this_machine) <= std::thread::hardware_concurrency() ? 1 : 0;
  for (size_t i = 0; i < kConnections * kRanks; ++i) new (region->data() + kSlotsAt + i * sizeof(Slot)) Slot;
  for (size_t i = 0; i < kRanks; ++i) new (region->data() + kMailboxesAt + i * sizeof(Mailbox)) Mailbox;
  return region;
}

std::unique_ptr<Communicator> Communicator::create(int size) {
  return std::unique_ptr<Communicator>(new Communicator(make_region(size, size), 0, true));
}

namespace {

// Where the leader of a machine has the memory.
struct Place {
  pid_t pid = 0;
  int fd = -1;
};

// Calls done() until it returns true. Throws if that takes too long.
template <class Done>
void wait_at_start(const Done& done, int rank) {
  const auto limit = std::chrono::steady_clock::now() + kStartLimit;
  for (Backoff backoff(false); !done(); backoff.pause()) {
    if (std::chrono::steady_clock::now() < limit) continue;
    throw Error(ErrorCode::kInternal, fmt::format("rank {} did not start within {} s", rank, kStartLimit.count()));
  }
}

void tell_place(Link& link, const std::vector<int>& ranks, int fd) {
  const Place place{::getpid(), fd};
  for (const int rank : ranks) {
    if (rank != link.rank()) link.send(rank, Channel::kStart, std::as_bytes(std::span(&place, 1)));
  }
  for (const int rank : ranks) wait_at_start([&] { return link.sent(Channel::kStart); }, rank);
}

int open_place(Link& link, int leader) {
  Place place;
  const auto buffer = std::as_writable_bytes(std::span(&place, 1));
  wait_at_start([&] { return link.receive(leader, Channel::kStart, buffer) == buffer.size(); }, leader);
  const std::string path = fmt::format("/proc/{}/fd/{}", place.pid, place.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0) return fd;
  throw Error(ErrorCode::kInternal,
              fmt::format("rank {} cannot open the memory of rank {} on its machine, {}: {} (expected processes of one "
                          "user that see each other)",
                          link.rank(), leader, path, std::strerror(errno)));
}

}  // namespace

std::unique_ptr<Communicator> Communicator::connect(std::shared_ptr<Link> link, const std::vector<int>& machines,
                                                    bool processes) {
  const int rank = link->rank(), size = link->size();
  CHECK(machines.size() == static_cast<size_t>(size), "{} machines of {} ranks", machines.size(), size);
  std::vector<int> local;
  for (int other = 0; other < size; ++other) {
    if (machines[static_cast<size_t>(other)] == machines[static_cast<size_t>(rank)]) local.push_back(other);
  }
  std::shared_ptr<SharedRegion> region;
  if (local.front() == rank) {
    region = make_region(size, static_cast<int>(local.size()));
    tell_place(*link, local, region->fd());
  } else {
    region = open_region(open_place(*link, local.front()), rank);
  }
  std::unique_ptr<Communicator> all(new Communicator(std::move(region), rank, processes));
  if (local.size() < machines.size()) all->reach_out(std::move(link), machines);
  all->barrier();
  return all;
}

void Communicator::reach_out(std::shared_ptr<Link> link, const std::vector<int>& machines) {
  remote_ = std::make_shared<RemoteRanks>(link, machines);
  bridge_ = std::make_unique<Bridge>(std::move(link), Channel::kAll, 0, machines);
  for (int other = 0; other < size_; ++other) {
    if (!here(other)) slot(other).state.store(kRunning);
  }
  remote_->watch([this](int lost, std::string_view why) { report_here(lost, why); }, [this] { (void)this->lost(); });
}

std::shared_ptr<SharedRegion> Communicator::open_region(int fd, int rank) {
  std::shared_ptr<SharedRegion> region = SharedRegion::open(fd);
  const auto* header = reinterpret_cast<const Header*>(region->data());
  const bool ours = region->size() >= kBoxesAt && header->magic == kMagic && header->size >= 1 &&
                    header->size <= kMostRanks && region->size() == region_bytes(header->size);
  if (!ours) throw Error(ErrorCode::kInvalidRequest, fmt::format("descriptor {} holds no ranks of this version", fd));
  if (rank < 0 || rank >= header->size) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("rank {} of {} ranks", rank, header->size));
  }
  return region;
}

std::unique_ptr<Communicator> Communicator::join(int fd, int rank) {
  return std::unique_ptr<Communicator>(new Communicator(open_region(fd, rank), rank, true));
}

std::vector<std::unique_ptr<Communicator>> Communicator::of_threads(int size) {
  const std::shared_ptr<SharedRegion> region = make_region(size, size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int i = 0; i < size; ++i) ranks.emplace_back(new Communicator(region, i, false));
  return ranks;
}

Communicator::Communicator(std::shared_ptr<SharedRegion> region, int rank, bool processes)
    : region_(std::move(region)), rank_(rank), size_(header().size), processes_(processes) {
  if (processes_) region_->hold(rank_);
  slot(rank_).state.store(kRunning);
}

Communicator::Communicator(const Communicator& all, int first, int size)
    : region_(all.region_),
      remote_(all.remote_),
      members_(all.members_ == Members::kAll ? Members::kGroup : Members::kPart),
      first_(all.first_ + first),
      rank_(all.rank_ - first),
      size_(size),
      processes_(all.processes_) {
  CHECK(all.members_ != Members::kPart && first >= 0 && rank_ >= 0 && rank_ < size && first + size <= all.size_,
        "ranks {} to {} as a group of rank {}", first, first + size - 1, all.rank_);
  if (remote_ == nullptr) return;
  const auto begin = remote_->machines().begin() + first_;
  const std::vector<int> machines(begin, begin + size);
  if (std::ranges::all_of(machines, [&](int machine) { return machine == machines.front(); })) return;
  const Channel channel = members_ == Members::kGroup ? Channel::kGroup : Channel::kPart;
  bridge_ = std::make_unique<Bridge>(remote_->shared_link(), channel, first_, machines);
}

std::unique_ptr<Communicator> Communicator::group(int first, int size) const {
  return std::unique_ptr<Communicator>(new Communicator(*this, first, size));
}

Communicator::~Communicator() {
  if (members_ != Members::kAll) return;
  if (remote_ != nullptr) remote_->stop();  // it uses this
  slot(rank_).state.store(kLeft);
  wake_all();
}

int Communicator::ranks_of_all() const { return header().size; }

Communicator::Slot& Communicator::slot_of_all(Members members, int rank) const {
  const size_t index = static_cast<size_t>(members) * kRanks + static_cast<size_t>(rank);
  return *reinterpret_cast<Slot*>(region_->data() + kSlotsAt + index * sizeof(Slot));
}

Communicator::Mailbox& Communicator::mailbox(int rank) const {
  return *reinterpret_cast<Mailbox*>(region_->data() + kMailboxesAt + static_cast<size_t>(rank) * sizeof(Mailbox));
}

std::byte* Communicator::box(int rank, uint32_t round) const {
  const size_t index =
      kBoxesOfRank * static_cast<size_t>(first_ + rank) + 2 * static_cast<size_t>(members_) + (round & 1);
  return region_->data() + kBoxesAt + index * kOutboxBytes;
}

std::byte* Communicator::letter(int rank, uint32_t number) const {
  const size_t index = kBoxesOfRank * static_cast<size_t>(rank) + 2 * kConnections + number % kLetters;
  return region_->data() + kBoxesAt + index * kOutboxBytes;
}

bool Communicator::joined(int rank) const { return slot_of_all(Members::kAll, first_ + rank).state.load() != kAbsent; }

void Communicator::publish(uint64_t tag, size_t bytes) {
  Slot& mine = slot(rank_);
  ++round_;
  mine.tags[round_ & 1] = tag;
  mine.bytes[round_ & 1] = bytes;
  mine.round.store(round_);
  if (mine.waiters.load() != 0) wake(mine.round);
  const bool leads = bridge_ != nullptr && bridge_->leads();
  for (int other = 0; other < size_; ++other) {
    if (other == rank_ || (leads && !here(other))) continue;
    wait_for(other, slot(other).round, slot(other).waiters, round_);
  }
  if (leads) exchange();
  for (int other = 0; other < size_; ++other) {
    if (slot(other).tags[round_ & 1] == tag) continue;
    report(first_ + other, fmt::format("it computes something else than rank {}", first_ + rank_));
    throw_lost();
  }
}

void Communicator::exchange() {
  const auto shown = [this](int member) {
    const Slot& from = slot(member);
    return Shown{.tag = from.tags[round_ & 1], .bytes = {box(member, round_), from.bytes[round_ & 1]}};
  };
  const auto take = [this](int member, const Shown& theirs) {
    Slot& to = slot(member);
    if (!theirs.bytes.empty()) std::memcpy(box(member, round_), theirs.bytes.data(), theirs.bytes.size());
    to.tags[round_ & 1] = theirs.tag;
    to.round.store(round_);
    if (to.waiters.load() != 0) wake(to.round);
  };
  try {
    bridge_->begin(shown);
    await([&] { return bridge_->end(take); });
  } catch (const Error& e) {
    fail(e.what());  // does nothing if it is because another rank is lost
    throw;
  }
}

template <class Done>
void Communicator::await(const Done& done) const {
  for (Backoff backoff(header().spins != 0); !done(); backoff.pause()) {
    if (header().lost.load() != 0) throw_lost();
  }
}

void Communicator::wait_for(int rank, const std::atomic<uint32_t>& counter, std::atomic<uint32_t>& waiters,
                            uint32_t value) const {
  uint32_t seen = 0;
  const auto arrived = [&] {
    seen = counter.load();  // ordered after the announcement in `waiters`
    return static_cast<int32_t>(seen - value) >= 0;
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
  waiters.fetch_add(1);
  while (!arrived() && header().lost.load() == 0 && !gone(first_ + rank)) sleep_on(counter, seen);
  waiters.fetch_sub(1);
  if (arrived()) return;
  if (header().lost.load() == 0) report(first_ + rank, "its process ended");
  throw_lost();
}

bool Communicator::gone(int rank) const {
  if (remote_ != nullptr && !remote_->here(rank)) return false;  // remote_ reports it
  const uint32_t state = slot_of_all(Members::kAll, rank).state.load();
  return state == kLeft || (state == kRunning && processes_ && rank != first_ + rank_ && !region_->held(rank));
}

void Communicator::report(int rank, std::string_view message) const {
  const bool first = report_here(rank, message);
  if (first && remote_ != nullptr) remote_->tell(rank, message);
}

bool Communicator::report_here(int rank, std::string_view message) const {
  int32_t none = 0;
  const bool first = header().lost.compare_exchange_strong(none, rank + 1);
  if (first) {
    const size_t bytes = std::min(message.size(), kMessageBytes - 1);
    std::memcpy(header().message, message.data(), bytes);
    header().message[bytes] = '\0';
    header().written.store(1);
  }
  wake_all();
  return first;
}

void Communicator::wake_all() const {
  for (int i = 0; i < ranks_of_all(); ++i) {
    for (const Members members : {Members::kAll, Members::kGroup, Members::kPart}) wake(slot_of_all(members, i).round);
    wake(mailbox(i).sent);
    wake(mailbox(i).received);
  }
}

void Communicator::fail(std::string_view message) { report(first_ + rank_, message); }

std::optional<std::string> Communicator::lost() const {
  for (int other = 0; other < ranks_of_all() && header().lost.load() == 0; ++other) {
    if (other != first_ + rank_ && gone(other)) report(other, "its process ended");
  }
  const int32_t lost = header().lost.load();
  if (lost == 0) return std::nullopt;
  // The reporter writes its message right after it has named the rank, unless it ends in between.
  const auto latest = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (header().written.load() == 0 && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  const std::string_view why = header().written.load() != 0 ? header().message : "its process ended";
  return fmt::format("rank {} of {} was lost: {}", lost - 1, ranks_of_all(), why);
}

void Communicator::throw_lost() const { throw Error(ErrorCode::kInternal, *lost()); }

void Communicator::send(int to, std::span<const std::byte> message) {
  CHECK(members_ == Members::kAll && to != rank_ && to >= 0 && to < size_, "a message from rank {} to rank {}", rank_,
        to);
  if (!here(to)) return send_far(to, message);
  Mailbox& mine = mailbox(rank_);
  for (size_t begin = 0; begin < message.size(); begin += kOutboxBytes) {
    const size_t bytes = std::min(kOutboxBytes, message.size() - begin);
    const uint32_t number = mine.sent.load();
    wait_for(to, mine.received, mine.senders, number + 1 - kLetters);
    std::memcpy(letter(rank_, number), message.data() + begin, bytes);
    mine.tags[number % kLetters] = letter_tag(to, bytes);
    mine.sent.store(number + 1);
    if (mine.receivers.load() != 0) wake(mine.sent);
  }
}

void Communicator::receive(int from, std::span<std::byte> message) {
  CHECK(members_ == Members::kAll && from != rank_ && from >= 0 && from < size_, "a message from rank {} to rank {}",
        from, rank_);
  if (!here(from)) return receive_far(from, message);
  Mailbox& other = mailbox(from);
  for (size_t begin = 0; begin < message.size(); begin += kOutboxBytes) {
    const size_t bytes = std::min(kOutboxBytes, message.size() - begin);
    const uint32_t number = other.received.load();
    wait_for(from, other.sent, other.receivers, number + 1);
    if (other.tags[number % kLetters] != letter_tag(rank_, bytes)) {
      report(from, fmt::format("it sends something else than rank {} expects", rank_));
      throw_lost();
    }
    std::memcpy(message.data() + begin, letter(from, number), bytes);
    other.received.store(number + 1);
    if (other.senders.load() != 0) wake(other.received);
  }
}

void Communicator::send_far(int to, std::span<const std::byte> message) {
  Link& link = remote_->link();
  if (letter_bytes_ + message.size() > kLetters * kOutboxBytes) await([&] { return link.sent(Channel::kLetters); });
  if (link.sent(Channel::kLetters)) letters_.clear(), letter_bytes_ = 0;
  letter_bytes_ += message.size();
  const std::span<const std::byte> copy = letters_.emplace_back(message.begin(), message.end());
  for (size_t begin = 0; begin < copy.size(); begin += kLinkPiece) {
    link.send(to, Channel::kLetters, copy.subspan(begin, std::min(kLinkPiece, copy.size() - begin)));
  }
}

void Communicator::receive_far(int from, std::span<std::byte> message) const {
  Link& link = remote_->link();
  for (size_t begin = 0; begin < message.size(); begin += kLinkPiece) {
    const std::span<std::byte> piece = message.subspan(begin, std::min(kLinkPiece, message.size() - begin));
    std::optional<size_t> size;
    await([&] {
      size = link.receive(from, Channel::kLetters, piece);
      return size.has_value();
    });
    if (size == piece.size()) continue;
    report(from, fmt::format("it sends something else than rank {} expects", rank_));
    throw_lost();
  }
}

void Communicator::barrier() { publish(1, 0); }

void Communicator::leave() {
  barrier();
  if (remote_ != nullptr) remote_->stop();
}

void Communicator::all_reduce_sum(std::span<float> values) {
  constexpr size_t kMost = kOutboxBytes / sizeof(float);
  for (size_t begin = 0; begin < values.size(); begin += kMost) {
    const std::span<float> piece = values.subspan(begin, std::min(kMost, values.size() - begin));
    std::memcpy(outbox(), piece.data(), piece.size_bytes());
    publish(uint64_t{2} << 32 | piece.size(), piece.size_bytes());
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
    publish(uint64_t{3} << 32 | bytes, bytes);
    for (int other = 0; other < size_; ++other) {
      std::memcpy(all.data() + static_cast<size_t>(other) * mine.size() + begin, inbox(other), bytes);
    }
  }
}

void Communicator::broadcast(std::vector<std::byte>& message, int root) {
  // The first piece begins with the size of the whole.
  for (size_t begin = 0, total = message.size(), head = sizeof total; begin < total || head > 0; head = 0) {
    size_t shown = 0;
    if (rank_ == root) {
      const size_t bytes = std::min(kOutboxBytes - head, total - begin);
      if (head > 0) std::memcpy(outbox(), &total, head);
      if (bytes > 0) std::memcpy(outbox() + head, message.data() + begin, bytes);
      shown = head + bytes;
    }
    publish(uint64_t{4} << 32 | static_cast<uint64_t>(root) << 1 | (head > 0 ? 1 : 0), shown);
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
