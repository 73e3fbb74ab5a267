// Conversations whose next turn is expected. Their blocks of the prefix cache are pinned until it comes, for a limited
// time: other cached blocks are evicted first. Pins never stand in the way of running sequences. Where blocks run out,
// the session that was used least recently loses its pins, and its blocks may be evicted like others.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "cache/block_pool.h"

namespace sluice {

struct SessionStats {
  int sessions = 0;                     // that have pins
  uint64_t expired = 0, displaced = 0;  // sessions that lost their pins: by time; to running sequences and the quota
};

// Owned by the engine thread; not thread-safe.
class Sessions {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Pins at most `most_blocks` blocks. The pool's on_pinned_needed must call displace().
  Sessions(BlockPool& pool, int most_blocks) : pool_(pool), most_blocks_(most_blocks) {}

  // Pins a cached primary block, all before it, and the dependent blocks of the last `rows` rows. They take the place
  // of what the session had pinned. A session that needs more than most_blocks alone has no pins.
  void keep(const std::string& name, BlockId last, int rows, Time expires);
  // The sessions that were used least recently lose their pins where others have too many. To be called after blocks
  // were committed to the prefix cache: they may be dependent blocks that a pinned row lacked.
  void keep_to_quota();
  // A turn of the session has begun: it does not expire before `expires`.
  void extend(const std::string& name, Time expires);
  // Unknown names are ignored.
  void end(const std::string& name);
  void end_all();
  void expire(Time now);
  std::optional<Time> next_expiry() const;
  // The session that was used least recently loses its pins, then others, until blocks that nobody holds are unpinned.
  void displace();

  SessionStats stats() const { return {static_cast<int>(sessions_.size()), expired_, displaced_}; }

 private:
  struct Session {
    BlockId last = kNoBlock;
    int rows = 0;
    Time expires{};
    std::list<std::string>::iterator at{};  // in by_use_
  };
  using Found = std::unordered_map<std::string, Session>::iterator;
  void erase(Found session);

  BlockPool& pool_;
  const int most_blocks_;
  std::unordered_map<std::string, Session> sessions_;
  std::list<std::string> by_use_;  // least recently used first
  std::set<std::pair<Time, std::string>> by_expiry_;
  uint64_t expired_ = 0, displaced_ = 0;
};

}  // namespace sluice
