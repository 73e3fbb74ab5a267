// Sequences of a beam search: they move on together, share blocks, and give up memory while they wait for each other.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace sluice {

void Scheduler::begin_beams(RequestState& request, Sequence& trunk) const {
  const SamplingParams& sampling = request.request.sampling;
  request.beams =
      std::make_unique<BeamSearch>(BeamSearch::Options{.params = *request.request.beams,
                                                       .most_tokens = trunk.most_tokens - trunk.prompt_length,
                                                       .min_tokens = sampling.min_tokens,
                                                       .end_tokens = request.end_tokens,
                                                       .keeps_logprobs = sampling.logprobs.has_value()});
  request.after.resize(request.choices.size());
  trunk.task.logprobs = std::max(request.beams->needed(), sampling.logprobs.value_or(0));
  trunk.speculates = false;
}

void Scheduler::commit_beam(Sequence& sequence, SampleResult& result) {
  RequestState& request = *sequence.request;
  --sequence.unknown;
  if (!result.error.empty()) {
    bad_logits_ |= result.bad_logits;
    Finish finish;
    finish.reason = FinishReason::kError;
    finish.message = result.error;
    return end_request(request, finish);
  }
  request.after[static_cast<size_t>(sequence.task.choice)] = std::move(result.logprobs);
  if (++request.known_after == request.beams->slots()) advance_beams(request);
}

// Whether it waits for the others of its search, as its next tokens are known.
bool Scheduler::waits_in_search(const Sequence& sequence) {
  const RequestState& request = *sequence.request;
  if (request.contrastive) return request.contrastive->known(sequence.task.choice);
  return request.beams && !request.after[static_cast<size_t>(sequence.task.choice)].top.empty();
}

void Scheduler::advance_beams(RequestState& request) {
  const int slots = request.beams->slots();
  const std::vector<BeamSearch::Move> moves = request.beams->advance(std::span(request.after).first(slots));
  request.known_after = 0;
  for (TokenLogprobs& after : request.after) after = {};
  if (moves.empty()) return finish_beams(request);
  if (request.unforked()) fork(*request.choices[0]);
  // No beam takes the place of one that goes on, so that parents are as they were.
  for (const BeamSearch::Move& move : moves) {
    if (move.slot != move.parent) adopt(*request.choices[move.slot], *request.choices[move.parent]);
  }
  for (const BeamSearch::Move& move : moves) {
    Sequence& beam = *request.choices[move.slot];
    beam.tokens.push_back(move.token);
    beam.blocks_stable_until = 0;
    if (beam.state == SequenceState::kParked) enqueue(beam);
  }
  for (size_t slot = moves.size(); slot < request.choices.size(); ++slot) park(*request.choices[slot]);
  ++running_set_;  // blocks have changed hands
}

// Makes a beam, or a candidate, the same as another one. Neither is part of a step in flight.
void Scheduler::adopt(Sequence& beam, const Sequence& parent) {
  beam.tokens = parent.tokens;
  beam.counts = parent.counts;
  beam.constraint = parent.constraint;
  beam.task.constraint = beam.constraint.get();
  if (parent.state != SequenceState::kRunning) park(beam);
  if (beam.state == SequenceState::kRunning) {
    beam.memory.release(pools_);
    beam.memory = parent.memory.fork(pools_);
    beam.computed = parent.computed;
  } else {
    beam.memory = {};
    beam.memory.layout = parent.memory.layout;
    beam.memory.hashes = parent.memory.hashes;
  }
}

void Scheduler::park(Sequence& beam) {
  if (beam.state != SequenceState::kRunning) return;
  stop_running(beam);
  beam.memory.release(pools_);
  beam.computed = 0;
  beam.state = SequenceState::kParked;
}

// Where nothing can run, takes the memory of the last sequence in rank that waits in a search. Returns whether there
// was one.
bool Scheduler::park_waiting(const BatchBuilder& builder) {
  if (in_flight_ > 0 || !builder.step().batch.empty()) return false;
  const auto found =
      std::find_if(running_.rbegin(), running_.rend(), [](const Sequence* one) { return waits_in_search(*one); });
  if (found == running_.rend()) return false;
  park(**found);
  ++(*found)->request->preemptions;
  ++preemptions_;
  return true;
}

// The best texts become the choices' answers.
void Scheduler::finish_beams(RequestState& request) {
  const std::vector<BeamSearch::Beam> found = request.beams->take_finished();
  const SamplingParams& sampling = request.request.sampling;
  const auto reported = static_cast<size_t>(sampling.logprobs.value_or(0));
  for (size_t i = 0; i < static_cast<size_t>(request.request.n); ++i) {
    SequenceEvent event{.request = request.id, .index = static_cast<int>(i)};
    event.admitted_at = request.choices[0]->admitted_at;
    event.finish = std::make_unique<Finish>();
    if (i < found.size()) {
      const BeamSearch::Beam& beam = found[i];
      generated_tokens_ += beam.output.size();
      for (const TokenId token : beam.output) event.tokens.push_back(token);
      event.finish->end_token = request.beams->ends(beam);
      event.finish->reason = event.finish->end_token ? FinishReason::kStop : FinishReason::kLength;
      const bool eos = !sampling.ignore_eos &&
                       std::ranges::find(options_.eos_token_ids, beam.output.back()) != options_.eos_token_ids.end();
      if (event.finish->end_token && !eos) event.finish->stop_token = beam.output.back();
      if (sampling.logprobs) {
        event.logprobs = std::make_unique<EventLogprobs>();
        event.logprobs->tokens = beam.logprobs;
        for (TokenLogprobs& token : event.logprobs->tokens) token.top.resize(std::min(token.top.size(), reported));
      }
      if (i == 0 && !request.prompt_logprobs.empty()) {
        if (!event.logprobs) event.logprobs = std::make_unique<EventLogprobs>();
        event.logprobs->prompt = std::exchange(request.prompt_logprobs, {});
      }
    } else {
      event.finish->reason = FinishReason::kError;
      event.finish->message = "the search found fewer texts than choices";
    }
    event.usage = {.prompt_tokens = request.prompt_length(),
                   .cached_tokens = request.choices[0]->cached_tokens,
                   .completion_tokens = static_cast<int>(event.tokens.size())};
    event.preemptions = request.preemptions;
    events_.push_back(std::move(event));
  }
  for (const auto& choice : request.choices) {
    if (choice && choice->state != SequenceState::kEnded) end_sequence(*choice);
  }
}

}  // namespace sluice
