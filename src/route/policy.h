// Chooses the replica of a request.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "cache/prefix_table.h"
#include "route/options.h"
#include "route/prompt.h"
#include "route/replica.h"

namespace sluice::route {

// What a request adds to its replica's load: 1, and 1 more for each 16 KiB of its body, at most 16. A long prompt is
// more work than a short one, but the router cannot know how much of it is cached.
int64_t weight_of(size_t body_bytes);

// Thread-safe.
class Policy {
 public:
  // Throws Error(kInvalidRequest) for an unknown policy.
  Policy(const RouteOptions& options, const Replicas& replicas);

  // What a choice depends on.
  struct Request {
    const Prompt& prompt;
    std::string session;  // from the body or a header; may be empty
    bool sticky = false;  // the session's replica has state that the request needs
    int64_t weight = 1;
  };
  // One of the `allowed` replicas; nullopt if there is none.
  // - cache: the least loaded of those that have computed most of the prompt, unless it has too much load. Else the
  //   session's replica by rendezvous hashing, with the same condition. Else the least loaded one.
  // - least-load, round-robin: as they say. A sticky request goes to its session's replica under every policy.
  // The load of a replica is too much above 5/4 of the least loaded one's + max_imbalance.
  // Remembers that the chosen replica has the prompt.
  std::optional<size_t> choose(const Request& request, ReplicaMask allowed);

  void forget(size_t replica) { table_.forget(replica); }
  const PrefixTable& table() const { return table_; }

 private:
  enum class Kind { kCache, kLeastLoad, kRoundRobin };

  std::optional<size_t> by_prefix(const Request& request, ReplicaMask allowed, int64_t most, size_t turn);
  std::optional<size_t> by_session(const std::string& session, ReplicaMask allowed, int64_t most) const;
  size_t least_of(ReplicaMask allowed, size_t turn) const;
  size_t next_in_turn(ReplicaMask allowed, size_t turn) const;

  const Replicas& replicas_;
  const Kind kind_;
  const int64_t max_imbalance_;
  PrefixTable table_;
  std::atomic<size_t> turn_{0};
};

}  // namespace sluice::route
