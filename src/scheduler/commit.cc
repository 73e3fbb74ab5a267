// Taking the results of a step: new tokens, forks, blocks for the prefix cache, and every way a sequence ends.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace sluice {
namespace {

Finish make_finish(FinishReason reason, std::string message = {}) {
  return {.reason = reason, .stop_string = {}, .stop_token = {}, .message = std::move(message)};
}

// `trunk` is the choice that computed the prompt; `choice` may be null.
Usage usage_of(const Sequence& trunk, const Sequence* choice) {
  const auto& contrastive = trunk.request->contrastive;
  const int candidate = contrastive && contrastive->begun() ? 1 : 0;  // not a part of the answer yet
  return {.prompt_tokens = trunk.request->prompt_length(),
          .cached_tokens = trunk.cached_tokens,
          .completion_tokens = choice != nullptr ? choice->outputs() - candidate : 0,
          .context_shifts = choice != nullptr ? choice->shifts : 0};
}

EventLogprobs& logprobs_of(SequenceEvent& event) {
  if (!event.logprobs) event.logprobs = std::make_unique<EventLogprobs>();
  return *event.logprobs;
}

}  // namespace

void Scheduler::commit(ScheduledBatch step, std::span<StepResult> results) {
  CHECK(in_flight_ > 0, "no step to commit");
  CHECK(results.size() == step.parts.size(), "{} results for {} parts", results.size(), step.parts.size());
  --in_flight_;
  for (const auto& part : step.parts) {
    if (--part.sequence->in_flight == 0) part.sequence->awaits_host = false;
  }
  events_.reserve(events_.size() + step.tasks.size());
  bad_logits_ = false;
  for (size_t i = 0; i < results.size(); ++i) commit_part(step.parts[i], results[i], step.number);
  erase_ended();
  if (bad_logits_) reset_prefix_cache();
  step.batch.given.clear();  // nobody needs the vectors any more
  spare_ = std::move(step);
}

void Scheduler::commit_part(const ScheduledBatch::Part& part, const StepResult& result, uint64_t step) {
  Sequence& sequence = *part.sequence;
  const auto note_bad_logits = [&](std::span<const SampleResult> list) {
    bad_logits_ |= std::ranges::any_of(list, &SampleResult::bad_logits);
  };
  if (sequence.state == SequenceState::kEnded) {  // while the step was in flight
    if (sequence.in_flight == 0) release(sequence);
    note_bad_logits(result.scores);
    return note_bad_logits(result.accepted);
  }
  prompt_tokens_ += std::clamp(sequence.prompt_length - part.first, 0, part.tokens);
  if (sequence.state == SequenceState::kRunning) {  // not preempted since
    commit_blocks(sequence);
    // The state has moved on if a further step was made; then the snapshot was taken before that.
    const bool state_is_here = part.first + part.tokens == sequence.computed;
    if (pools_.recurrent() && state_is_here) {
      sequence.memory.take_snapshot(pools_, sequence.computed, sequence.prompt_length);
    }
  }

  if (sequence.request->contrastive) note_hidden(part);
  if (step <= sequence.dropped_until) return note_bad_logits(result.accepted);

  RequestState& request = *sequence.request;
  for (SampleResult& score : result.scores) {
    if (!score.error.empty()) {
      bad_logits_ |= score.bad_logits;
      return end_request(request, make_finish(FinishReason::kError, std::string(score.error)));
    }
    request.prompt_logprobs.push_back(std::move(score.logprobs));
    ++request.scored;
  }
  switch (part.outputs) {
    case Outputs::kNone:
    case Outputs::kScores:
      return;
    case Outputs::kVector:
      return commit_vector(sequence, result.vector);
    case Outputs::kToken:
      if (request.beams) return commit_beam(sequence, result.accepted[0]);
      if (request.contrastive) return commit_candidate(sequence, result);
      return commit_tokens(sequence, result.accepted, 1);
    case Outputs::kVerify:
      count_draft(part.samples - 1, static_cast<int>(result.accepted.size()) - 1);
      sequence.unseen = part.later && static_cast<int>(result.accepted.size()) == part.samples;
      return commit_tokens(sequence, result.accepted, part.samples);
    case Outputs::kFork:
      fork(sequence);
      for (int i = 0; i < part.samples; ++i) commit_tokens(*request.choices[i], result.accepted.subspan(i, 1), 1);
  }
}

void Scheduler::commit_vector(Sequence& sequence, const std::vector<float>& vector) {
  const bool finite = std::ranges::all_of(vector, [](float value) { return std::isfinite(value); });
  bad_logits_ |= !finite;
  SequenceEvent& event = events_.emplace_back();
  event.request = sequence.id;
  event.admitted_at = sequence.admitted_at;
  event.usage = usage_of(sequence, &sequence);
  event.preemptions = sequence.request->preemptions;
  event.finish = std::make_unique<Finish>(finite ? make_finish(FinishReason::kStop)
                                                 : make_finish(FinishReason::kError, "the vector is not finite"));
  if (finite) event.vector = std::make_unique<std::vector<float>>(vector);
  end_sequence(sequence);
}

void Scheduler::count_draft(int drafted, int accepted) {
  ++drafts_.drafts;
  drafts_.tokens += static_cast<uint64_t>(drafted);
  drafts_.accepted.resize(std::max(drafts_.accepted.size(), static_cast<size_t>(drafted)));
  for (int place = 0; place < accepted; ++place) ++drafts_.accepted[static_cast<size_t>(place)];
}

void Scheduler::fork(Sequence& trunk) {
  RequestState& request = *trunk.request;
  reserved_slots_ -= request.width() - 1;
  for (int i = 1; i < request.width(); ++i) {
    auto choice = std::make_unique<Sequence>(trunk);
    choice->rank.index = choice->task.choice = i;
    if (choice->task.counts != nullptr) choice->task.counts = &choice->counts;
    if (choice->task.tokens != nullptr) choice->task.tokens = &choice->tokens;
    if (choice->task.state != nullptr) choice->task.state = &choice->sampler_state;
    choice->task.constraint = choice->constraint.get();
    choice->memory = trunk.memory.fork(pools_);
    if (choice->adapter_slot >= 0) adapters_.share(choice->adapter_slot);
    start_running(*choice);
    request.choices[i] = std::move(choice);
  }
}

// Takes the accepted ones of `sampled` tokens. What was computed for the others is given up.
void Scheduler::commit_tokens(Sequence& sequence, std::span<SampleResult> accepted, int sampled) {
  SequenceEvent& event = events_.emplace_back();
  event.request = sequence.id;
  event.index = sequence.task.choice;
  event.admitted_at = sequence.admitted_at;
  sequence.unknown -= sampled;
  for (SampleResult& result : accepted) {
    if (!result.error.empty()) {
      bad_logits_ |= result.bad_logits;
      event.finish = std::make_unique<Finish>(make_finish(FinishReason::kError, std::string(result.error)));
      break;
    }
    if (sequence.constraint && !sequence.constraint->accept(result.token)) {
      event.finish = std::make_unique<Finish>(make_finish(FinishReason::kError, kNotAllowed));
      break;
    }
    append(sequence, result.token, event);
    if (sequence.task.state != nullptr) sequence.sampler_state = result.state;
    if (sequence.task.logprobs >= 0) logprobs_of(event).tokens.push_back(std::move(result.logprobs));
    if (event.finish) break;
  }
  if (sequence.jumps && !event.finish) jump(sequence, event);
  if (!sequence.plain && sequence.task.choice == 0 && !event.tokens.empty()) {
    std::vector<TokenLogprobs> prompt = std::exchange(sequence.request->prompt_logprobs, {});
    if (!prompt.empty()) logprobs_of(event).prompt = std::move(prompt);
  }
  event.usage = usage_of(sequence, &sequence);
  event.preemptions = sequence.request->preemptions;
  if (sampled > 1 && !event.tokens.empty()) {
    sequence.computed = sequence.known() - 1;
    sequence.blocks_stable_until = 0;
    sequence.memory.truncate(pools_, sequence.computed);
    commit_blocks(sequence);
  }
  if (event.finish) {
    end_sequence(sequence);
  } else if (sequence.known() == sequence.most_tokens) {
    shift_context(sequence);
  }
}

// Takes a token that the constraint, if there is one, has accepted.
void Scheduler::append(Sequence& sequence, TokenId token, SequenceEvent& event) {
  sequence.tokens.push_back(token);
  if (sequence.task.counts != nullptr) {
    sequence.counts.add_output(token);
    sequence.counts.slide(sequence.text(), sequence.prompt_length - sequence.given);
  }
  ++generated_tokens_;
  event.tokens.push_back(token);
  event.finish = finish_of(sequence);
}

// Takes the tokens that must come next. If a step is in flight, it computes the last known token, whose successor is
// then known before it is sampled. Whether a token is taken depends on the sequence alone, as an answer must not depend
// on others.
void Scheduler::jump(Sequence& sequence, SequenceEvent& event) {
  forced_.clear();
  sequence.constraint->forced(sequence.text(), sequence.most_tokens - sequence.known(), forced_);
  const std::span<const TokenId> ends = sequence.task.end_tokens;
  const auto end =
      std::ranges::find_if(forced_, [&](TokenId token) { return std::ranges::find(ends, token) != ends.end(); });
  forced_.erase(end, forced_.end());
  if (forced_.empty()) return;
  if (sequence.in_flight > 0) {
    sequence.unknown = 0;
    sequence.dropped_until = steps_;
  }
  for (const TokenId token : forced_) {
    if (!sequence.constraint->accept(token)) {
      event.finish = std::make_unique<Finish>(make_finish(FinishReason::kError, kNotAllowed));
      return;
    }
    append(sequence, token, event);
    ++forced_tokens_;
    if (event.finish) return;
  }
}

std::unique_ptr<Finish> Scheduler::finish_of(const Sequence& sequence) const {
  const TokenId token = sequence.tokens.back();
  const auto in = [&](std::span<const TokenId> ids) { return std::ranges::find(ids, token) != ids.end(); };
  const bool may_end = (sequence.end_bits & end_bit(token)) != 0;
  const SamplingParams& sampling = *sequence.task.params;
  const bool constrained = sequence.constraint && sequence.constraint->decides_end();
  const bool long_enough = sequence.outputs() > sampling.min_tokens || constrained;
  if (may_end && long_enough && in(sequence.task.end_tokens)) {
    auto finish = std::make_unique<Finish>(make_finish(FinishReason::kStop));
    finish->end_token = true;
    const bool eos = (!sampling.ignore_eos || constrained) && in(options_.eos_token_ids);
    if (!eos) finish->stop_token = token;
    return finish;
  }
  if (sequence.constraint && sequence.constraint->ended()) {
    return std::make_unique<Finish>(make_finish(FinishReason::kStop));
  }
  if (sequence.known() < sequence.ends_at) return nullptr;
  return std::make_unique<Finish>(make_finish(FinishReason::kLength));
}

// Commits the sequence's full blocks to the prefix cache, as far as their tokens are known and the draft model has
// computed them.
void Scheduler::commit_blocks(Sequence& sequence) {
  const int whole = std::min(sequence.computed, sequence.known()) - (sequence.unseen ? 1 : 0);
  if (whole < sequence.blocks_stable_until) return;
  SequenceMemory& memory = sequence.memory;
  const RequestState& request = *sequence.request;
  auto tokens = std::span<const TokenId>(sequence.tokens).first(whole);
  bool looked = false;
  std::vector<TokenId> own;
  if (memory.layout != nullptr) {
    looked = memory.commit_modules(pools_);
    if (memory.next_module() < 0) own = memory.layout->own_rows(tokens);
    tokens = own;
  }
  const std::string& salt = memory.layout != nullptr ? memory.layout->own_salt : request.request.cache_salt;
  looked |= memory.commit_to_cache(pools_, salt, tokens, request.extras());
  if (looked) {
    sequence.blocks_stable_until = 0;  // the memory may have other blocks now
  }
}

void Scheduler::cancel(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  end_request(*found->second, make_finish(FinishReason::kAbort));
  erase_ended();
}

void Scheduler::finish(RequestId id, int index) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  auto& choices = found->second->choices;
  if (index < 0 || index >= static_cast<int>(choices.size()) || !choices[index]) return;
  if (choices[index]->state == SequenceState::kEnded || found->second->unforked()) return;
  if (found->second->contrastive) {
    end_contrastive(*found->second);
    return erase_ended();
  }
  end_sequence(*choices[index]);
  erase_ended();
}

void Scheduler::end_request(RequestState& request, const Finish& finish) {
  if (request.choices[0]->state == SequenceState::kEnded && request.unforked()) return;
  for (int i = 0; i < request.request.n; ++i) {
    Sequence* choice = request.choices[i].get();
    if (choice && choice->state == SequenceState::kEnded) continue;
    SequenceEvent event{.request = request.id, .index = i};
    event.finish = std::make_unique<Finish>(finish);
    event.usage = usage_of(*request.choices[0], choice);
    event.preemptions = request.preemptions;
    events_.push_back(std::move(event));
  }
  for (const auto& choice : request.choices) {
    if (choice && choice->state != SequenceState::kEnded) end_sequence(*choice);
  }
}

// Blocks and state of a sequence that is part of steps in flight are released when these are committed.
void Scheduler::end_sequence(Sequence& sequence) {
  RequestState& request = *sequence.request;
  if (sequence.state == SequenceState::kRunning) {
    stop_running(sequence);
    if (request.unforked()) reserved_slots_ -= request.width() - 1;
  } else if (sequence.state == SequenceState::kWaiting) {
    policy_->erase(sequence);
    if (!request.admitted) queue_limit_.leave(request.request.n, request.prompt_length());
  }
  sequence.state = SequenceState::kEnded;
  release_hidden(request);
  ended_.push_back(request.id);
  if (sequence.in_flight == 0) release(sequence);
}

// Gives back the memory of a sequence that has ended. The first choice's is kept for the session.
void Scheduler::release(Sequence& sequence) {
  const Request& request = sequence.request->request;
  if (!request.session.empty() && sequence.task.choice == 0) {
    const Sessions::Time expires = options_.clock() + request.session_ttl;
    remember_session(sequence, expires);
    sequence.memory.keep_for(request.session, expires, pools_);
  }
  sequence.memory.release(pools_);
}

// Forgets requests without a living choice. Steps in flight may point to them: then later.
void Scheduler::erase_ended() {
  std::erase_if(ended_, [this](RequestId id) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return true;  // another choice of it was in the list
    const RequestState& request = *found->second;
    bool living = false;
    for (const auto& choice : request.choices) {
      if (choice && choice->in_flight > 0) return false;
      living |= choice && choice->state != SequenceState::kEnded;
    }
    if (living) return true;
    if (request.request.deadline) deadlines_.erase({*request.request.deadline, id});
    if (const auto& transfer = request.request.kv_transfer; transfer && transfer->host.empty()) {
      exports_.end(transfer->id, options_.clock());
    }
    requests_.erase(found);
    return true;
  });
}

std::vector<SequenceEvent> Scheduler::drain() { return std::exchange(events_, {}); }

void Scheduler::drain(std::vector<SequenceEvent>& into) {
  into.clear();
  into.swap(events_);
}

}  // namespace sluice
