// Two counters, each taken back when the other one has no room.
#include "scheduler/queue_limit.h"

namespace sluice {

bool QueueLimit::try_enter(int sequences, int64_t prompt_tokens) {
  const int64_t before = sequences_.fetch_add(sequences);
  if (before > 0 && before + sequences > max_sequences_) {
    sequences_.fetch_sub(sequences);
    refused_by_sequences_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const int64_t tokens_before = tokens_.fetch_add(prompt_tokens);
  if (max_tokens_ > 0 && tokens_before > 0 && tokens_before + prompt_tokens > max_tokens_) {
    leave(sequences, prompt_tokens);
    refused_by_tokens_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  return true;
}

void QueueLimit::leave(int sequences, int64_t prompt_tokens) {
  tokens_.fetch_sub(prompt_tokens);
  sequences_.fetch_sub(sequences);
}

bool QueueLimit::full() const { return sequences() >= max_sequences_ || (max_tokens_ > 0 && tokens() >= max_tokens_); }

}  // namespace sluice
