// A bound on the work that waits.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice {

// Counts the sequences and prompt tokens of requests that never ran, in the inbox or in the scheduler's queue.
// Thread-safe: Engine::submit enters a request; the scheduler leaves for it when it first runs or ends.
class QueueLimit {
 public:
  // max_tokens 0: no limit of its own.
  QueueLimit(int max_sequences, int64_t max_tokens) : max_sequences_(max_sequences), max_tokens_(max_tokens) {}
  // False, counting the refusal, when the queue has no room. A request larger than a limit enters an empty queue.
  bool try_enter(int sequences, int64_t prompt_tokens);
  void leave(int sequences, int64_t prompt_tokens);
  bool full() const;
  int sequences() const { return static_cast<int>(sequences_.load(std::memory_order_relaxed)); }
  int64_t tokens() const { return tokens_.load(std::memory_order_relaxed); }
  // Requests that were refused by the limit of sequences, and by that of tokens.
  uint64_t refused_by_sequences() const { return refused_by_sequences_.load(std::memory_order_relaxed); }
  uint64_t refused_by_tokens() const { return refused_by_tokens_.load(std::memory_order_relaxed); }

 private:
  const int64_t max_sequences_, max_tokens_;
  std::atomic<int64_t> sequences_{0}, tokens_{0};
  std::atomic<uint64_t> refused_by_sequences_{0}, refused_by_tokens_{0};
};

}  // namespace sluice
