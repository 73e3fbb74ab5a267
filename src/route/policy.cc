// Prefix, session and load, in this order.
#include "route/policy.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/sha256.h"
#include "sluice/error.h"

namespace sluice::route {
namespace {

constexpr int64_t kNoBound = INT64_MAX;

}  // namespace

int64_t weight_of(size_t body_bytes) {
  constexpr size_t kBytesPerUnit = 16 << 10, kMaxWeight = 16;
  return static_cast<int64_t>(std::min(kMaxWeight, 1 + body_bytes / kBytesPerUnit));
}

Policy::Policy(const RouteOptions& options, const Replicas& replicas)
    : replicas_(replicas),
      kind_(options.policy == "cache"        ? Kind::kCache
            : options.policy == "least-load" ? Kind::kLeastLoad
                                             : Kind::kRoundRobin),
      max_imbalance_(options.max_imbalance),
      table_(kind_ == Kind::kCache ? options.prefix_table_bytes : 0) {
  if (kind_ != Kind::kRoundRobin || options.policy == "round-robin") return;
  throw Error(
      ErrorCode::kInvalidRequest,
      fmt::format("--policy: unknown value '{}' (expected one of: cache, least-load, round-robin)", options.policy),
      "policy", "");
}

std::optional<size_t> Policy::choose(const Request& request, ReplicaMask allowed) {
  if (allowed == 0) return std::nullopt;
  if (request.sticky && !request.session.empty()) return by_session(request.session, allowed, kNoBound);
  if (kind_ == Kind::kRoundRobin) return next_in_turn(allowed, turn_++);
  const size_t turn = turn_;
  const size_t least = least_of(allowed, turn);
  if (kind_ == Kind::kLeastLoad) {
    ++turn_;
    return least;
  }
  const int64_t most = most_load(replicas_[least]->load, max_imbalance_);
  std::optional<size_t> chosen = by_prefix(request, allowed, most, turn);
  // The least loaded replica computes a prefix that others have, but have no time for.
  if (!chosen && !request.session.empty()) chosen = by_session(request.session, allowed, most);
  if (!chosen) {
    chosen = least;
    ++turn_;  // only now: repeated prompts between new ones must not decide where the new ones go
  }
  table_.remember(request.prompt.chain, *chosen);
  return chosen;
}

std::optional<size_t> Policy::by_prefix(const Request& request, ReplicaMask allowed, int64_t most, size_t turn) {
  const PrefixTable::Match match = table_.find(request.prompt.chain, allowed);
  if (match.blocks == 0) return std::nullopt;
  const size_t chosen = least_of(match.replicas, turn);
  if (replicas_[chosen]->load > most) return std::nullopt;
  ++replicas_[chosen]->prefix_hits;
  replicas_[chosen]->prefix_blocks += match.blocks;
  return chosen;
}

// Rendezvous hashing: every replica has a score for the session, and the highest one wins. When a replica leaves, only
// its own sessions move.
std::optional<size_t> Policy::by_session(const std::string& session, ReplicaMask allowed, int64_t most) const {
  std::optional<size_t> best;
  uint64_t best_score = 0;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (!has(allowed, i) || replicas_[i]->load > most) continue;
    const Sha256 digest = sha256({replicas_[i]->url, "\n", session});
    uint64_t score = 0;
    std::memcpy(&score, digest.data(), sizeof score);
    if (!best || score > best_score) {
      best = i;
      best_score = score;
    }
  }
  return best;
}

size_t Policy::least_of(ReplicaMask allowed, size_t turn) const {
  return least_loaded(replicas_.size(), allowed, turn, [this](size_t i) -> int64_t { return replicas_[i]->load; });
}

size_t Policy::next_in_turn(ReplicaMask allowed, size_t turn) const {
  size_t i = turn % replicas_.size();
  while (!has(allowed, i)) i = (i + 1) % replicas_.size();
  return i;
}

}  // namespace sluice::route
