// What the last turns of sessions had in the prefix cache, so that it can be loaded again before the next turn comes.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "sluice/token.h"

namespace sluice {

struct SessionText {
  std::string salt{};             // of its blocks
  std::vector<TokenId> tokens{};  // of whole blocks
  std::string digests{};          // of the vectors that the first tokens stand for
  std::string adapter{};          // BlockExtras::adapter
  int adapter_from = 0;
  std::chrono::steady_clock::time_point expires{};
  std::chrono::milliseconds ttl{};  // how long its blocks are pinned once they are there
};

struct PrefetchStats {
  uint64_t loaded = 0, present = 0;  // the session's tokens are on the device again; they were still there
  uint64_t unknown = 0;              // no such session, or nothing of it is left
  uint64_t no_room = 0, failed = 0;  // too few blocks; rows could not be read
};

// Owned by the engine thread; not thread-safe.
class SessionTexts {
 public:
  // Texts of more than `most_tokens` tokens together are not kept: those that are oldest give way.
  explicit SessionTexts(int64_t most_tokens) : most_tokens_(most_tokens) {}

  // Takes the place of what the session had.
  void keep(const std::string& session, SessionText text);
  const SessionText* find(const std::string& session) const;  // null: none is kept
  void end(const std::string& session);
  void clear();
  int64_t tokens() const { return tokens_; }

 private:
  using Texts = std::list<std::pair<std::string, SessionText>>;

  const int64_t most_tokens_;
  int64_t tokens_ = 0;
  Texts texts_;  // oldest first
  std::unordered_map<std::string, Texts::iterator> by_session_;
};

}  // namespace sluice
