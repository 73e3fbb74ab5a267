// The replicas behind a router: where they are, whether they can take requests, and what they have to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache/prefix_table.h"
#include "route/options.h"
#include "route/split_prompt.h"

namespace sluice::route {

enum class Role { kWhole, kPrefill, kDecode };  // computes prompts only, or goes on with them

// Counters and state of one replica. Thread-safe.
struct Replica {
  // Throws Error(kInvalidRequest) that names the role's option if the URL is not http://HOST:PORT.
  explicit Replica(const std::string& url, Role role = Role::kWhole);

  const Role role;
  const std::string url;         // "http://host:port", as in metrics and logs
  const std::string host, port;  // to connect to
  const std::string authority;   // for the Host header

  std::atomic<bool> healthy{false};  // gets requests
  // /health has had no answer for so long that open requests are given up.
  std::atomic<bool> lost{false};
  std::atomic<int64_t> load{0};  // weights of the requests in flight
  std::atomic<int> in_flight{0};

  std::atomic<uint64_t> requests{0};       // attempts to have it answer a request
  std::atomic<uint64_t> prefix_hits{0};    // requests that it got for a prefix of their prompt
  std::atomic<uint64_t> prefix_blocks{0};  // blocks of these prefixes
  std::atomic<uint64_t> refused{0};        // attempts that ended before an answer: no connection, closed, or 503
  std::atomic<uint64_t> broken{0};         // answers that ended before their end
  std::atomic<uint64_t> left{0};           // how often it left the rotation

  // Where it gives keys and values, as its /health said last.
  void set_transfer(std::optional<TransferAddress> address) {
    const std::scoped_lock lock(mutex_);
    transfer_ = std::move(address);
  }
  std::optional<TransferAddress> transfer() const {
    const std::scoped_lock lock(mutex_);
    return transfer_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<TransferAddress> transfer_;
};

// A request in flight at a replica, counted from construction to destruction.
class Assignment {
 public:
  Assignment(std::shared_ptr<Replica> replica, int64_t weight) : replica_(std::move(replica)), weight_(weight) {
    replica_->load += weight_;
    ++replica_->in_flight;
  }
  ~Assignment() {
    replica_->load -= weight_;
    --replica_->in_flight;
  }
  Assignment(const Assignment&) = delete;

 private:
  const std::shared_ptr<Replica> replica_;
  const int64_t weight_;
};

using Replicas = std::vector<std::shared_ptr<Replica>>;

// Throws Error(kInvalidRequest) that names --replica: none, too many, malformed, or twice the same.
Replicas make_replicas(const std::vector<std::string>& urls);
// Makes those of --replica, or of --prefill and --decode. Throws Error(kInvalidRequest) also if only one of the latter
// is given, or --replica beside them.
Replicas replicas_of(const RouteOptions& options);

ReplicaMask healthy_of(const Replicas& replicas);
// Returns those that get the requests of clients. Those that compute prompts are among them only if there are no
// others.
ReplicaMask answering(const Replicas& replicas, ReplicaMask healthy);
// Returns those that compute prompts and give them away.
ReplicaMask prefilling(const Replicas& replicas, ReplicaMask healthy);

}  // namespace sluice::route
