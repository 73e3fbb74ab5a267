// A hash table of blocks with a list from the last used to the first to go.
#include "cache/prefix_table.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {

PrefixTable::PrefixTable(int64_t bytes) : capacity_(static_cast<size_t>(bytes / kBytesPerBlock)) {
  // The buckets of a full table from the start: making more of them later would hold up requests.
  index_.reserve(capacity_);
}

ReplicaMask PrefixTable::replicas_of(const Entry& entry) const {
  if (entry.time == time_) return entry.replicas;
  ReplicaMask mask = entry.replicas;
  for (size_t i = 0; i < kMaxReplicas; ++i) {
    if (forgotten_[i] > entry.time) mask &= ~(ReplicaMask{1} << i);
  }
  return mask;
}

PrefixTable::Match PrefixTable::find(std::span<const ChainHash> chain, ReplicaMask allowed) const {
  const std::lock_guard lock(mutex_);
  Match match{.replicas = allowed};
  for (const ChainHash& hash : chain) {
    const auto found = index_.find(hash);
    if (found == index_.end()) break;
    const ReplicaMask have = match.replicas & replicas_of(*found->second);
    if (have == 0) break;
    match.replicas = have;
    ++match.blocks;
  }
  if (match.blocks == 0) match.replicas = 0;
  return match;
}

// From the last block to the first, so that the first is the last one to go.
void PrefixTable::remember(std::span<const ChainHash> chain, size_t replica) {
  CHECK(replica < kMaxReplicas, "replica {} of {}", replica, kMaxReplicas);
  chain = chain.first(std::min(chain.size(), capacity_));
  const ReplicaMask bit = ReplicaMask{1} << replica;
  const std::lock_guard lock(mutex_);
  for (auto block = chain.rbegin(); block != chain.rend(); ++block) {
    const ChainHash& hash = *block;
    if (const auto found = index_.find(hash); found != index_.end()) {
      Entry& entry = *found->second;
      entry.replicas = replicas_of(entry) | bit;
      entry.time = time_;
      entries_.splice(entries_.begin(), entries_, found->second);
      continue;
    }
    if (entries_.size() >= capacity_) {
      index_.erase(entries_.back().hash);
      entries_.pop_back();
    }
    entries_.push_front({.hash = hash, .replicas = bit, .time = time_});
    index_.emplace(hash, entries_.begin());
  }
}

void PrefixTable::forget(size_t replica) {
  CHECK(replica < kMaxReplicas, "replica {} of {}", replica, kMaxReplicas);
  const std::lock_guard lock(mutex_);
  forgotten_[replica] = ++time_;
}

size_t PrefixTable::blocks() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace sluice
