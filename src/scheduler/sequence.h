// A sequence: one choice of a request, as plain state. Only the scheduler changes it.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "batch/constraint.h"
#include "batch/penalty_counts.h"
#include "batch/sample_task.h"
#include "cache/hidden_rows.h"
#include "scheduler/adapter_slots.h"
#include "scheduler/beam_search.h"
#include "scheduler/contrastive_search.h"
#include "scheduler/memory.h"
#include "sluice/engine.h"
#include "sluice/request.h"

namespace sluice {

// The order of running sequences: lower is served first and preempted last.
struct Rank {
  static constexpr int64_t kFirst = std::numeric_limits<int64_t>::min();  // of sequences that were overtaken too often
  int64_t priority = 0;                                                   // see Policy::priority()
  uint64_t arrival = 0;
  int index = 0;  // choice
  auto operator<=>(const Rank&) const = default;
};

// A parked one is a beam or a candidate without memory. Its next tokens are known, and it waits for those of the
// others.
enum class SequenceState : uint8_t { kWaiting, kRunning, kParked, kEnded };

struct Adapter;
struct RequestState;

struct alignas(64) Sequence {
  // Read in every step for every sequence: one cache line.
  std::vector<TokenId> tokens;  // prompt, then known output
  int unknown = 0;              // tokens after these that steps in flight may give, at most
  int sample = 0;               // which task of its step samples the last one of them
  int computed = 0;             // leading tokens whose keys and values are in the blocks after the last step
  int most_tokens = 0;          // where it ends, or where its context is shifted: prompt and max_tokens, or the context
  int blocks_stable_until = 0;  // while fewer tokens are computed, the next one leaves its blocks alone
  int16_t in_flight = 0;        // steps it is part of that are not committed
  bool awaits_host = false;     // no further step before the last one is committed
  bool speculates = false;      // drafts are made for it
  uint64_t last_step = 0;       // number of the last step it was part of
  uint64_t placed_in = 0;       // number of the last step that changed its blocks

  // Read when a token comes.
  RequestState* request = nullptr;
  RequestId id = 0;                                     // the request's
  std::chrono::steady_clock::time_point admitted_at{};  // when the request first ran
  uint64_t dropped_until = 0;                           // tokens that this step and earlier ones sample are dropped
  int prompt_length = 0;                                // tokens of the prompt; of those that are left
  int given = 0;                                        // leading tokens that only stand for vectors
  int shift = 0;                                        // positions of its own tokens less their indices, with modules
  int shifts = 0;                                       // of its context
  int dropped_output = 0;                               // tokens of the output that these dropped
  int64_t ends_at = 0;                                  // tokens; above most_tokens: its context is shifted there
  int cached_tokens = 0;                                // prompt tokens found in the cache when first admitted
  uint64_t end_bits = 0;                                // bit `token % 64` of every end token
  SequenceState state = SequenceState::kWaiting;
  int adapter_slot = -1;  // of a running sequence; -1: it has no adapter
  bool jumps = false;     // forced tokens are taken without being sampled
  bool unseen = false;    // the last computed token is one that the draft model made, but did not compute
  bool plain = true;      // the only choice, and no log-probabilities of prompt tokens are asked for
  SampleTask task;        // what is sampled for it, without row and position

  Rank rank;
  uint64_t queued_at = 0;  // admissions before it began to wait; kept by the policy
  SequenceMemory memory;
  ConstraintState constraint;  // task.constraint points here
  SamplerState sampler_state;  // kept only if a sampler has state; task.state points here then
  PenaltyCounts counts;        // kept only if the parameters have a penalty; task.counts points here then

  int known() const { return static_cast<int>(tokens.size()); }
  int length() const { return known() + unknown; }
  int outputs() const { return known() - prompt_length + dropped_output; }  // known tokens of the output, all of them
  std::span<const TokenId> text() const { return std::span(tokens).subspan(static_cast<size_t>(given)); }
};

inline uint64_t end_bit(TokenId token) { return uint64_t{1} << (static_cast<uint32_t>(token) % 64); }

// What the choices of a request share.
struct RequestState {
  RequestId id = 0;
  bool admitted = false;  // was running before
  int scored = 0;         // leading prompt rows whose log-probabilities are done
  int preemptions = 0;    // of its sequences, which lost their memory
  Request request;
  RequestAdapter adapter;
  std::vector<TokenId> end_tokens;  // end-of-sequence (unless ignored) and stop_token_ids
  std::vector<TokenLogprobs> prompt_logprobs;
  std::unique_ptr<const ModuleLayout> layout;  // of the prompt's modules; null: it has none
  // choices[0] computes the prompt; the others are forked from it when the prompt is done, and null before.
  std::vector<std::unique_ptr<Sequence>> choices;

  // With beams: choices[i] computes the beam in slot i.
  std::unique_ptr<BeamSearch> beams;
  std::vector<TokenLogprobs> after;  // by slot: the likeliest tokens after the beam, if they are known
  int known_after = 0;               // of them

  // With a contrastive search: choices[i] computes the candidate in slot i.
  std::unique_ptr<ContrastiveSearch> contrastive;
  HiddenText hidden;

  int prompt_length() const { return static_cast<int>(request.prompt.size()); }
  bool searches() const { return beams || contrastive; }
  BlockExtras extras() const {
    return {.digests = request.prompt_vectors != nullptr ? request.prompt_vectors->digests() : std::string_view(),
            .adapter = adapter.key,
            .adapter_from = adapter.from};
  }
  int width() const { return static_cast<int>(choices.size()); }  // sequences at most
  bool unforked() const { return choices.size() > 1 && !choices[1]; }
  // Whether log-probabilities of prompt tokens are still to be computed.
  bool scores_prompt() const { return request.sampling.prompt_logprobs && scored < prompt_length() - 1; }
};

}  // namespace sluice
