// Sizes of a scheduler.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "batch/batch.h"
#include "cache/block_pool.h"
#include "cache/row_store.h"
#include "scheduler/adapter_slots.h"
#include "sluice/request.h"

namespace sluice {

struct Sequence;

// Guesses the tokens that follow the known ones of a sequence: appends at most `most` tokens to `draft`, which is
// empty. Called for sequences that decode, before each of their steps. Tokens that are not known yet are negative.
using DraftSource = std::function<void(const Sequence& sequence, int most, std::vector<TokenId>& draft)>;

struct SchedulerOptions {
  int max_num_seqs = 256;            // running sequences
  int max_num_batched_tokens = 512;  // in one step
  int max_logit_rows = 512;          // in one step
  int max_model_len = 0;             // tokens of one sequence; peak_blocks() of them must fit
  int block_size = 16;
  int blocks = 0;
  std::vector<BlockGroup> groups{{}};  // groups of layers; the one that sees furthest is the first
  int state_slots = 0;                 // for recurrent layers, max_num_seqs at least; 0: the model has none
  std::string policy = "fcfs";         // a name of scheduler/policies/; the constructor throws if there is none
  int max_overtaken = 1024;            // see Starvation
  bool prefix_caching = true;
  int max_queued_sequences = 1024;  // see QueueLimit
  int64_t max_queued_tokens = 0;    // prompt tokens; 0: no limit of its own
  std::string fingerprint{};        // identifies the model in block hashes
  int hash_bits = 256;              // see BlockPoolOptions
  uint64_t seed = 0;                // for requests without a seed
  std::vector<TokenId> eos_token_ids{};
  int adapter_slots = 0;                // adapters that running sequences may use together
  AdapterSlots::Place place_adapter{};  // for adapter_slots > 0
  Eviction eviction = Eviction::kLru;   // of the prefix cache
  int session_blocks = 0;               // blocks that are pinned for sessions at most (cache/sessions.h)
  int hidden_rows = 0;                  // for hidden states of texts, see Contrastive search; 0: none
  DraftSource draft{};                  // empty: no speculation
  bool jump_ahead = true;               // see Jumps
  bool context_shift = false;           // see Context shifts
  int context_keep = 0;                 // of requests that do not say it; -1: the prompt
  RowStoreOptions row_store{};          // see Rows outside of the device; with recurrent layers none is kept
  std::chrono::milliseconds exports_held_for{30'000};  // see RowExports
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
};

// The most blocks of one group, or of all, that a sequence of `tokens` tokens holds at a time.
int peak_blocks(int64_t tokens, int block_size, const BlockGroup& group, int max_num_batched_tokens);
int peak_blocks(int64_t tokens, int block_size, std::span<const BlockGroup> groups, int max_num_batched_tokens);

// The most tokens that a context shift may keep beside those that it moves.
int most_kept(const SchedulerOptions& options);

// Throws Error(kInvalidRequest) when the request can never be served: empty prompt, no room for a token in the context,
// prompt and max_tokens beyond it, n outside 1 .. max_num_seqs. Thread-safe.
void check_fits(const Request& request, const SchedulerOptions& options);

}  // namespace sluice
