// Decides what each step computes: continuous batching with chunked prefill, prefix reuse, preemption by recompute,
// n > 1 by copy-on-write, and verification of drafted tokens. Pure host code, owned by the engine thread; deterministic
// given calls and clock.
//
//   while (work) {
//     ScheduledBatch step = scheduler.next();
//     if (!step.batch.empty()) {
//       ... the runner computes the logits of step.batch.sample_rows, the sampler gives a result for each step.tasks
//       ... std::vector<StepResult> results = step_results(step, samples); scheduler.commit(std::move(step), results);
//     }
//     for (SequenceEvent& event : scheduler.drain()) ...;
//   }
//
// Run-ahead. While a step is in flight, next() gives the step after it, so that a device need not wait for the host.
// The tokens that the first step samples are not known then; Batch::from_sample says which sample gives them. Some
// sequences cannot go on before the host has their results: those that score prompt tokens, fork, or have drafts. They
// are left out of the second step while the others go on. A sequence that turns out to have ended keeps its blocks
// until the second step is committed, whose results for it are dropped. Ends by max_tokens and by the context are known
// ahead. Steps run in the order in which next() gave them: memory that one step reads is free for those after it.
//
// A step. Decodes come first, then the chunks of sequences that jumped, then prefill chunks, each in rank order. Then
// waiting sequences are admitted while token budget, sequence slots and blocks last. The policy (scheduler/policies/)
// gives the rank and the order of admission. The head of its queue is never passed by another sequence. A sequence is
// admitted when all its tokens fit beside what the running ones still need to finish their prefill.
//
// Preemption. When blocks run out, a sequence takes them from the last running sequence in rank, if that one is behind
// it and not yet part of the step. The victim gives up all its blocks and waits again, in the place its rank gives it;
// it keeps its generated tokens. A victim whose results are awaited is spared until they are there. A sequence that has
// none behind it waits. So the first in rank always proceeds, and as every context fits the pool, it ends.
//
// Starvation. Under fcfs tenants take turns, so that a sequence waits only for earlier ones of its tenant and for as
// many of each other tenant. Under priority a waiting sequence is passed by at most max_overtaken admissions. Then it
// ranks, to its end, before everything except earlier arrivals that waited as long.
//
// Drafts. SchedulerOptions::draft guesses what follows a sequence. The step computes the guesses after the last known
// token, and commit() takes any number of accepted tokens, 1 .. drafted + 1; the memory of the others is given back.
// Drafts use budget and blocks that nobody else needs in the step. The source may leave the tokens of a draft open and
// give only their number. Whoever runs the step writes the tokens into its batch first, and calls shorten_drafts()
// where there are fewer. Sequences with penalties, with samplers that look back or with a prompt of vectors, and models
// with recurrent layers, have none.
//
// Recurrent layers. A running sequence has a slot of state. A prefix can be reused up to a snapshot of the state. They
// are taken at the ends of prefill chunks, which are cut at block ends for it; at the last block end that a sequence
// generated; and, once a second prompt shares blocks that have no snapshot, where the two prompts part.
//
// Windows. A sequence has blocks for each group of layers (nn/attention/kv_cache.h). It gives back those that slid out
// of their group's window and never holds more than peak_blocks(). Group 0 has the primary blocks of the prefix cache.
// Of these the block before the first one in sight is kept, too, as the parent of the next block that is committed. A
// prefix is reused up to where the cache has all that the next token will see.
//
// Constraints. A sequence may have a constraint on its tokens, which moves on with every token that is committed. It is
// asked for a mask when a token is sampled; the step that computes the logits may be launched before.
//
// Jumps. Where a constraint leaves one way to go on, commit() appends the forced tokens behind the sampled one. The
// next step computes them together, like a chunk of a prompt, and samples what follows. If a step is in flight, it
// samples the first of these tokens in vain, and that result is dropped. The text is one that the constraint allows,
// but its tokens may differ from those that would have been sampled. Sequences have no jumps if log-probabilities are
// asked for, or if the request says which tokens it likes (logit_bias, allowed_token_ids). A forced token that would
// end the text is sampled.
//
// Context shifts. A sequence that fills the context may go on without its oldest tokens, but for those that are to be
// kept (context_shift.cc). What is left is computed anew, like a prompt that somebody has cut.
//
// Adapters. A running sequence of a request with an adapter holds the slot that the adapter is in. A sequence is
// admitted when its adapter has a slot or one is free. Prefixes are shared only within an adapter, by the request's
// cache_salt.
//
// Vectors. A request with `pooling` has its prompt computed like any other, and ends with the prompt's vector instead
// of a token. The engine makes it of the hidden states of the steps that compute the prompt.
//
// Beams. A request may search for its choices (beam_search.h). Its prompt is computed by one sequence, then each beam
// is a sequence that shares blocks with the others. A beam whose next tokens are known waits for the other beams. Where
// these lack memory and nothing else can run, it gives up its own, and computes its text again when the search goes on.
//
// Contrastive search. A request may have the next token chosen among candidates (contrastive_search.h). These are
// sequences, like beams. The engine keeps the hidden states of the text, and says how like them those of the candidates
// are. The scheduler gives it rows of memory for them (cache/hidden_rows.h), as many as the text may have tokens. A
// request without a running sequence gives its rows to others that lack them. What is not in rows is computed again,
// whatever the prefix cache has of it.
//
// Modules. The first parts of a prompt may be computed apart (prompt_modules.h). A sequence takes the blocks of all of
// its modules when it is admitted, and computes those that are not in the prefix cache before its own text. Each one is
// a part of the step. A sequence that lacks a module which another one computes waits for that.
//
// Rows outside of the device. With SchedulerOptions::row_store, rows of the prefix cache are also saved to host memory
// and to a file (cache/row_store.h). A waiting sequence is admitted with the rows that it finds there. It runs when
// they are loaded; until then it counts as running, and others go on. Blocks that are being saved are held as long.
// fetch() has the rows of a prompt come from another server before the request is added. Rows of a request with
// kv_transfer go to another server (row_exports.h).
//
// Sessions. When a sequence of a session ends, its rows of the prefix cache are pinned until the session's next turn
// (cache/sessions.h). Pinned blocks are available like other cached ones, and are evicted last.
//
// Prefetches. What a session had in the prefix cache, and what is kept outside of the device, is loaded again when the
// caller says that the next turn comes soon (prefetch.cc). Requests go first: a prefetch takes blocks that nobody holds
// and that running sequences do not need.
//
// NaN in the logits may come from cached blocks: after such a fault the whole prefix cache is forgotten.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "batch/batch.h"
#include "batch/sample_task.h"
#include "batch/token_list.h"
#include "cache/block_pool.h"
#include "cache/hidden_rows.h"
#include "cache/state_pool.h"
#include "scheduler/batch_builder.h"
#include "scheduler/draft_stats.h"
#include "scheduler/memory.h"
#include "scheduler/options.h"
#include "scheduler/policy.h"
#include "scheduler/queue_limit.h"
#include "scheduler/row_exports.h"
#include "scheduler/scheduled_batch.h"
#include "scheduler/sequence.h"
#include "scheduler/session_texts.h"
#include "sluice/error.h"

namespace sluice {

struct EventLogprobs {
  std::vector<TokenLogprobs> tokens;  // one per new token, when asked for
  std::vector<TokenLogprobs> prompt;  // with the first token of choice 0, when asked for: one per prompt token; the
                                      // first has rank 0, as nothing predicts it
};

// What a step, a cancellation or a deadline did to one choice of a request.
struct SequenceEvent {
  RequestId request = 0;
  int index = 0;
  TokenList tokens{};                            // the new ones, end and stop tokens included
  std::unique_ptr<EventLogprobs> logprobs{};     // null when not asked for
  std::unique_ptr<std::vector<float>> vector{};  // for Request::pooling, with a finish
  std::unique_ptr<Finish> finish{};              // nothing follows for this choice
  Usage usage{};
  int preemptions = 0;                                  // of the request so far
  std::chrono::steady_clock::time_point admitted_at{};  // when the request first ran
};

struct SchedulerStats {
  int running = 0;   // sequences
  int waiting = 0;   // sequences: new requests (one each) and preempted ones
  int deferred = 0;  // of these: those that only wait for a slot of their adapter
  uint64_t preemptions = 0;
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;  // computed, recomputed ones included
  uint64_t generated_tokens = 0;
  uint64_t forced_tokens = 0;  // of these: not sampled
  uint64_t context_shifts = 0;
  // Of requests when they are first admitted: modules that were there, and modules that had to be computed.
  uint64_t modules_found = 0, modules_computed = 0;
};

class Scheduler {
 public:
  // The context must fit the pool: peak_blocks(max_model_len) <= blocks (a CHECK, the memory plan's duty).
  explicit Scheduler(SchedulerOptions options);

  // For Engine::submit, from any thread; add() expects a request that has entered.
  QueueLimit& queue_limit() { return queue_limit_; }
  const QueueLimit& queue_limit() const { return queue_limit_; }

  // The request must have passed check_fits(); ids are never reused.
  // `constraint` may be null. It restricts the tokens of every choice. If it decides the end, that is the end of the
  // text, whatever ignore_eos says.
  // `adapter` changes the model for the request. The options must have slots for adapters then.
  void add(RequestId id, Request request, std::unique_ptr<Constraint> constraint = nullptr,
           RequestAdapter adapter = {});
  // Ends every choice with FinishReason::kAbort. Blocks are free when this returns or, when the request is part of
  // steps in flight, when these are committed. Unknown ids are ignored.
  void cancel(RequestId id);
  // Ends one choice without an event: the caller found a stop string in its text. Events of the choice that came
  // before this call took effect are the caller's to drop. Unknown and ended choices are ignored.
  void finish(RequestId id, int index);

  // The next step. Requests past their deadline end first. An empty batch means that nothing can run now, or nothing
  // before the step in flight is committed. At most one step may be in flight; a step that is not empty must be
  // committed.
  ScheduledBatch next();
  // Makes the drafts of a step that next() gave, and that has not run, as short as `drafted` says, part by part. The
  // memory of the dropped tokens is given back.
  void shorten_drafts(ScheduledBatch& step, std::span<const int> drafted);
  // Ends requests and sessions whose time is over; next() does so as well.
  void expire();
  // Takes the results of the oldest step in flight, one per part. A result with an error ends its choice with
  // FinishReason::kError; the others go on.
  void commit(ScheduledBatch step, std::span<StepResult> results);

  // Events since the last call, in order. Each choice gets exactly one with `finish`, unless finish() ended it.
  std::vector<SequenceEvent> drain();
  // Puts them into a list, whose memory is used again.
  void drain(std::vector<SequenceEvent>& into);

  bool idle() const { return requests_.empty(); }
  // Unpins the session's blocks; unknown ones are ignored. `session` is Request::session.
  void end_session(const std::string& session) {
    session_texts_.end(session);
    pools_.sessions.end(session);
  }
  // Begins to load what the session had in the prefix cache and what the store of rows has of it.
  void prefetch_session(const std::string& session);
  const PrefetchStats& prefetch_stats() const { return prefetch_stats_; }
  SessionStats session_stats() const { return pools_.sessions.stats(); }

  // The earliest deadline of requests, sessions and exports, if there is one: expire() and take_transfers() are due
  // then even without other work.
  std::optional<std::chrono::steady_clock::time_point> next_deadline() const;
  SchedulerStats stats() const;
  const DraftStats& draft_stats() const { return drafts_; }
  const BlockPool& block_pool() const { return pools_.blocks; }
  const StatePool& states() const { return pools_.states; }
  void reset_prefix_cache();  // also of what is kept outside of the device

  // What is to be moved between the device's blocks and the store of rows. To be called after the runner was called for
  // the last step. Values of rows that are saved are final once that has run, and blocks that are loaded may be written
  // then.
  std::vector<std::shared_ptr<const RowTransfer>> take_transfers();
  // A transfer is done; `failed` are indices of rows that could not be moved.
  void finish_transfer(uint64_t transfer, std::span<const int> failed = {});
  // Begins to receive the rows of a request's prompt that are not here, from where its kv_transfer says. Returns the
  // number of the fetch, see RowStore::take_fetches; 0: add the request at once. It is added whatever comes.
  uint64_t fetch(const Request& request);
  RowExports& exports() { return exports_; }
  // Whether sequences wait for transfers.
  bool awaits_transfers() const { return !loads_.empty() || !prefetches_.empty() || pools_.only_saved() > 0; }
  RowStore& row_store() { return pools_.store; }
  const RowStore& row_store() const { return pools_.store; }
  // Every request that has not ended, by id; for tests and inspection.
  const std::unordered_map<RequestId, std::unique_ptr<RequestState>>& requests() const { return requests_; }
  // Calls f(block) for all blocks that prefetches hold; for tests.
  template <class F>
  void each_prefetching(F&& f) const {
    for (const auto& [load, prefetch] : prefetches_) {
      for (const SequenceBlocks& own : prefetch.memory.groups) {
        for (const BlockId block : own.held()) f(block);
      }
    }
  }

 private:
  // Building a step.
  bool repeat(BatchBuilder& builder);
  bool decodes_all(const ScheduledBatch& step) const;
  enum class Work : uint8_t { kDecode, kJump, kPrefill };  // in the order of a step
  static Work work_of(const Sequence& sequence);
  bool schedule_running(BatchBuilder& builder, Work work);
  bool schedule(BatchBuilder& builder, Sequence& sequence);
  bool schedule_modules(BatchBuilder& builder, Sequence& sequence);
  void copy_tails(BatchBuilder& builder, SequenceMemory& memory) const;
  int chunk_size(const BatchBuilder& builder, const Sequence& sequence) const;
  int stop_for_snapshot(const Sequence& sequence, int tokens) const;
  int draft(const BatchBuilder& builder, const Sequence& sequence);
  int provide_blocks(BatchBuilder& builder, Sequence& sequence, int tokens);
  bool preempt_behind(const BatchBuilder& builder, const Sequence& sequence);
  void preempt(Sequence& victim);
  void start_running(Sequence& sequence);
  void stop_running(Sequence& sequence);
  void leave_adapter(Sequence& sequence);
  void admit_waiting(BatchBuilder& builder);
  bool admit(BatchBuilder& builder, Sequence& sequence);
  bool others_compute(const ModuleLayout& wanted, const FoundRows& found) const;
  std::vector<BlockHash> row_hashes(const Request& request) const;
  int promised_blocks() const;
  void enqueue(Sequence& sequence);
  void begin_load(Sequence& sequence, uint64_t load, bool first);
  void finish_loads();

  // Taking results.
  void commit_part(const ScheduledBatch::Part& part, const StepResult& result, uint64_t step);
  void fork(Sequence& trunk);
  void commit_vector(Sequence& sequence, const std::vector<float>& vector);
  void count_draft(int drafted, int accepted);
  void commit_tokens(Sequence& sequence, std::span<SampleResult> accepted, int sampled);
  void append(Sequence& sequence, TokenId token, SequenceEvent& event);
  void jump(Sequence& sequence, SequenceEvent& event);
  std::unique_ptr<Finish> finish_of(const Sequence& sequence) const;
  void shift_context(Sequence& sequence);
  void commit_blocks(Sequence& sequence);

  // A running sequence whose first rows are being loaded.
  struct Loading {
    Sequence* sequence = nullptr;
    bool first = false;  // its request was admitted for the first time
  };

  // A session whose rows are being loaded (prefetch.cc).
  struct Prefetch {
    std::string session{};
    SessionText text{};
    SequenceMemory memory{};
    bool forgotten = false;  // the prefix cache was reset meanwhile
  };
  void remember_session(const Sequence& sequence, Sessions::Time expires);
  void finish_prefetch(Prefetch prefetch, bool failed);
  void end_prefetch(Prefetch& prefetch);

  // Beam search (beams.cc).
  void begin_beams(RequestState& request, Sequence& trunk) const;
  void commit_beam(Sequence& sequence, SampleResult& result);
  void advance_beams(RequestState& request);
  void adopt(Sequence& beam, const Sequence& parent);
  void park(Sequence& beam);
  static bool waits_in_search(const Sequence& sequence);
  bool park_waiting(const BatchBuilder& builder);
  void finish_beams(RequestState& request);

  // Contrastive search (contrastive.cc).
  void begin_contrastive(RequestState& request, Sequence& trunk) const;
  static int hidden_rows_of(const RequestState& request);
  void note_hidden(const ScheduledBatch::Part& part);
  void release_hidden(RequestState& request);
  void commit_candidate(Sequence& sequence, const StepResult& result);
  bool choose_candidate(RequestState& request, int slot);
  void advance_contrastive(RequestState& request, int chosen);
  void fail_contrastive(RequestState& request, std::string_view error);
  void end_contrastive(RequestState& request);

  // Ending.
  void end_sequence(Sequence& sequence);
  void release(Sequence& sequence);
  void end_request(RequestState& request, const Finish& finish);
  void erase_ended();

  const SchedulerOptions options_;
  MemoryPools pools_;
  RowExports exports_;
  AdapterSlots adapters_;
  HiddenRows hidden_rows_;
  QueueLimit queue_limit_;
  std::unordered_map<RequestId, std::unique_ptr<RequestState>> requests_;
  std::vector<Sequence*> running_;  // by rank; a list, as every step goes through it
  std::unique_ptr<Policy> policy_;  // with the waiting sequences
  std::set<std::pair<std::chrono::steady_clock::time_point, RequestId>> deadlines_;
  std::vector<SequenceEvent> events_;
  std::unordered_map<uint64_t, Loading> loads_;
  SessionTexts session_texts_;
  std::unordered_map<uint64_t, Prefetch> prefetches_;  // by load
  PrefetchStats prefetch_stats_;
  ScheduledBatch spare_;             // the step that was committed last, for one like it or for its memory
  std::vector<TokenId> draft_;       // of the sequence that is being scheduled
  std::vector<TokenId> forced_;      // of the sequence whose result is being committed
  std::vector<Sequence*> changing_;  // running sequences whose blocks the next step changes
  std::vector<RequestId> ended_;     // requests with a choice that ended since the last erase_ended()
  int reserved_slots_ = 0;           // sequences that running ones will fork
  int in_flight_ = 0;                // steps that were handed out and not committed
  bool lacks_adapter_slot_ = false;  // the first waiting sequence, when the last step was made
  uint64_t running_set_ = 1;         // generation of running_, changed with it
  bool bad_logits_ = false;          // in the results that are being committed
  uint64_t arrivals_ = 0;
  uint64_t preemptions_ = 0, steps_ = 0, prompt_tokens_ = 0, generated_tokens_ = 0;
  uint64_t forced_tokens_ = 0, context_shifts_ = 0;
  uint64_t modules_found_ = 0, modules_computed_ = 0;
  DraftStats drafts_;
};

}  // namespace sluice
