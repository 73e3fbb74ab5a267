// Chooses the replica of a request, and counts what each replica has to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/prefix_table.h"
#include "cache/replica_choice.h"
#include "sluice/token.h"

namespace sluice {

// Thread-safe.
class Placement {
 public:
  explicit Placement(int replicas);

  // One hash per kBlock tokens of a prompt; the salt separates prompts that may not share a cache.
  static constexpr size_t kBlock = 16;
  static std::vector<ChainHash> chain_of(std::span<const TokenId> prompt, std::string_view salt);

  // One of the `allowed` replicas, of which there is at least one: the least loaded of those that have computed most
  // of the prompt, unless its load is above 5/4 of the least loaded one's + kImbalance. Else the least loaded one;
  // equally loaded ones take turns.
  int choose(std::span<const ChainHash> chain, ReplicaMask allowed);

  // The replica gets a request. The load counts until the returned object and its copies are destroyed.
  std::shared_ptr<const void> enter(int replica, std::span<const ChainHash> chain, int64_t load);
  // What a request adds to the load: its choices, and 1 for each 1024 tokens of its prompt.
  static int64_t load_of(int choices, size_t prompt_tokens);

  void forget_prefixes(int replica);
  int64_t load(int replica) const { return (*loads_)[static_cast<size_t>(replica)].load(); }

  static constexpr int64_t kImbalance = 2;

 private:
  int least_of(ReplicaMask allowed, size_t turn) const;

  // Shared with what enter() returns, which may be destroyed later.
  const std::shared_ptr<std::vector<std::atomic<int64_t>>> loads_;
  PrefixTable table_;
  std::atomic<size_t> turn_{0};
};

}  // namespace sluice
