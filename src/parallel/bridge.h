// The exchange of outboxes between machines. Of each machine one rank, the leader, sends what all ranks of its machine
// show to the other leaders, in one message each. Every rank's values travel, not their sums: all machines must add
// them in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel/link.h"

namespace sluice {

// What a rank shows in a round.
struct Shown {
  uint64_t tag = 0;
  std::span<const std::byte> bytes{};
};

class Bridge {
 public:
  static constexpr size_t kMostBytes = size_t{1} << 20;  // that a rank shows in a round

  // Connects the ranks first .. first + machines.size() - 1 of the link; machines[i] is the machine of the i-th one.
  Bridge(std::shared_ptr<Link> link, Channel channel, int first, const std::vector<int>& machines);

  bool leads() const { return leads_; }
  bool here(int rank) const;  // whether a member is on this machine; members are counted from 0

  // A round, for the leader. begin() sends what `shown` returns for each member of this machine. Then end() is called
  // until it returns true: all has come, and all was sent. It passes what other machines' members show to `take`.
  // Throws Error(kInternal) if a message is not what a leader sends.
  void begin(const std::function<Shown(int rank)>& shown);
  bool end(const std::function<void(int rank, const Shown&)>& take);

 private:
  struct Machine {
    int id;
    std::vector<int> ranks;  // members, in order
    bool received = true;
    std::vector<std::byte> buffer{};
  };
  void unpack(const Machine& machine, size_t size, const std::function<void(int rank, const Shown&)>& take) const;

  std::shared_ptr<Link> link_;
  Channel channel_;
  int first_;
  bool leads_ = false;
  Machine mine_{};
  std::vector<Machine> others_;
  std::vector<std::byte> message_;  // on its way
};

}  // namespace sluice
