// Remembers which replicas have computed which prefixes of prompts. What was used longest ago is forgotten first.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <list>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/replica_choice.h"

namespace sluice {

// The first 16 bytes of a SHA-256 (base/sha256.h). Hash i of a chain covers the blocks up to i, so that equal hashes
// mean equal prefixes.
using ChainHash = std::array<uint8_t, 16>;

// Thread-safe.
class PrefixTable {
 public:
  // bytes: about the memory that the table takes when it is full; 0: it remembers nothing.
  explicit PrefixTable(int64_t bytes);

  struct Match {
    size_t blocks = 0;         // blocks from the start that the replicas have; 0: none
    ReplicaMask replicas = 0;  // those of the `allowed` ones that have so many
  };
  Match find(std::span<const ChainHash> chain, ReplicaMask allowed) const;
  void remember(std::span<const ChainHash> chain, size_t replica);
  // The replica has started anew: its cache is empty.
  void forget(size_t replica);

  size_t blocks() const;
  int64_t bytes() const { return static_cast<int64_t>(blocks()) * kBytesPerBlock; }

  static constexpr int64_t kBytesPerBlock = 128;  // two nodes and a bucket

 private:
  struct Entry {
    ChainHash hash;
    ReplicaMask replicas;
    uint64_t time;  // of the last change; replicas that were forgotten later do not count
  };
  struct Hasher {
    size_t operator()(const ChainHash& hash) const {
      size_t out;
      std::memcpy(&out, hash.data(), sizeof out);
      return out;
    }
  };
  ReplicaMask replicas_of(const Entry& entry) const;

  const size_t capacity_;  // in blocks
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last used one first; of a prompt, earlier blocks come before later ones
  std::unordered_map<ChainHash, std::list<Entry>::iterator, Hasher> index_;
  uint64_t time_ = 0;
  std::vector<uint64_t> forgotten_ = std::vector<uint64_t>(kMaxReplicas, 0);  // when each replica was
};

}  // namespace sluice
