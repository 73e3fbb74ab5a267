// The ranks that compute a model together, and how they exchange data. Every rank calls the same collectives in the
// same order; a call returns when all ranks have made it. Sums are added in the order of the ranks, so all ranks get
// the same bits, and runs repeat.
//
// The ranks of a machine are processes that share memory (SharedRegion), or threads of one process. Ranks on several
// machines also have a Link. In every round one rank of each machine copies what ranks of other machines show into its
// machine's memory (Bridge). The others read it there as if it came from this machine.
//
// A rank that ends becomes an Error on every other rank that waits for it: within a fraction of a second on its
// machine, and within about two seconds on others. The Error names the rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/bridge.h"
#include "parallel/link.h"
#include "parallel/remote_ranks.h"
#include "parallel/shared_region.h"

namespace sluice {

// One rank's end of the connection. Only one thread may call collectives; fail() and lost() may be called by any.
class Communicator {
 public:
  static constexpr int kMostRanks = 64;
  static constexpr size_t kOutboxBytes = Bridge::kMostBytes;

  // Rank 0 of `size` processes. The other ranks join with the descriptor fd().
  static std::unique_ptr<Communicator> create(int size);
  static std::unique_ptr<Communicator> join(int fd, int rank);
  // The ranks of a group of threads in this process. A rank counts as lost when its Communicator is destroyed.
  static std::vector<std::unique_ptr<Communicator>> of_threads(int size);
  // The ranks of a link: processes on one machine or several; machines[r] is the machine of rank r. All ranks call it,
  // and it returns when all have. `processes`: false if all are threads of one process, for tests. Throws
  // Error(kInternal) if ranks of this machine cannot share memory.
  static std::unique_ptr<Communicator> connect(std::shared_ptr<Link> link, const std::vector<int>& machines,
                                               bool processes = true);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // This rank's end of a connection between the ranks first .. first + size - 1 only, this one among them. They are
  // numbered from 0 in it. Besides the connection to all ranks, a rank has at most one such group, and one more of that
  // group's ranks.
  std::unique_ptr<Communicator> group(int first, int size) const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int fd() const { return region_->fd(); }
  bool joined(int rank) const;  // whether the rank has ever joined

  // Collectives. They throw Error(kInternal) that names the rank if one is lost, or if ranks call different ones.
  void barrier();
  // Replaces each value by its sum over the ranks.
  void all_reduce_sum(std::span<float> values);
  // all = the parts of rank 0, 1, ...; all parts have equal sizes.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all);
  // Replaces `message` by the root's, whatever its size.
  void broadcast(std::vector<std::byte>& message, int root);

  // Messages from one rank to another, which it receives in the order in which they were sent. A sender waits only if
  // kLetters pieces of kOutboxBytes were not received yet. Both must name the same number of bytes. Not for groups.
  static constexpr uint32_t kLetters = 16;
  void send(int to, std::span<const std::byte> message);
  void receive(int from, std::span<std::byte> message);

  // What the collectives are made of. A rank writes up to kOutboxBytes to its outbox. publish() shows the first `bytes`
  // of them to the other ranks and returns when all have published. Then inbox(r) is what rank r wrote, until the next
  // publish(). `tag` must be equal on all ranks, but `bytes` need not be.
  std::byte* outbox() const { return box(rank_, round_ + 1); }
  void publish(uint64_t tag, size_t bytes);
  const std::byte* inbox(int rank) const { return box(rank, round_); }

  // Says that this rank is done, and returns when all ranks are. From then on none counts as lost, and none may use the
  // link through this connection.
  void leave();
  // Tells the other ranks that this one cannot go on. They get an Error with this message.
  void fail(std::string_view message);
  // Returns what to say about the first rank that was lost, for example "rank 1 was lost: ..."; nullopt while all are
  // there.
  std::optional<std::string> lost() const;

 private:
  struct Header;
  struct Slot;
  struct Mailbox;
  enum class Members : size_t { kAll, kGroup, kPart };  // which of a rank's slots and pairs of outboxes are used
  Communicator(std::shared_ptr<SharedRegion> region, int rank, bool processes);
  Communicator(const Communicator& all, int first, int size);
  static std::shared_ptr<SharedRegion> make_region(int size, int on_this_machine);
  static std::shared_ptr<SharedRegion> open_region(int fd, int rank);
  void reach_out(std::shared_ptr<Link> link, const std::vector<int>& machines);

  // Ranks are numbered as in this connection, unless it says "of all".
  Header& header() const { return *reinterpret_cast<Header*>(region_->data()); }
  Slot& slot_of_all(Members members, int rank) const;
  Slot& slot(int rank) const { return slot_of_all(members_, first_ + rank); }
  Mailbox& mailbox(int rank) const;
  std::byte* letter(int rank, uint32_t number) const;
  std::byte* box(int rank, uint32_t round) const;
  // Waits until `counter`, which `rank` raises, has reached `value`. Throws if the rank is lost before.
  void wait_for(int rank, const std::atomic<uint32_t>& counter, std::atomic<uint32_t>& waiters, uint32_t value) const;
  // The same for what comes through the link: calls done() until it returns true.
  template <class Done>
  void await(const Done& done) const;
  void exchange();  // with other machines, for all ranks of this one
  void send_far(int to, std::span<const std::byte> message);
  void receive_far(int from, std::span<std::byte> message) const;
  bool here(int rank) const { return remote_ == nullptr || remote_->here(first_ + rank); }
  int ranks_of_all() const;
  bool gone(int rank_of_all) const;
  // Says on all machines, or on this one, that a rank is lost. Only the first loss counts; report_here returns whether
  // it was this one.
  void report(int rank_of_all, std::string_view message) const;
  bool report_here(int rank_of_all, std::string_view message) const;
  void wake_all() const;
  [[noreturn]] void throw_lost() const;

  std::shared_ptr<SharedRegion> region_;  // shared by threads of one process
  std::shared_ptr<RemoteRanks> remote_;   // null: all ranks are on this machine
  std::unique_ptr<Bridge> bridge_;        // null: all ranks of this connection are on this machine
  Members members_ = Members::kAll;
  int first_ = 0;  // number of rank 0 among all
  int rank_;
  int size_;
  bool processes_;
  uint32_t round_ = 0;                           // rounds that this rank has published
  std::vector<std::vector<std::byte>> letters_;  // copies of messages that the link may still read
  size_t letter_bytes_ = 0;
};

}  // namespace sluice
