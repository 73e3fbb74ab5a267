// Sequences of a contrastive search: the candidates for the next token. They move on together, as beams do.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace sluice {

void Scheduler::begin_contrastive(RequestState& request, Sequence& trunk) const {
  const SamplingParams& sampling = request.request.sampling;
  const int width = request.width();
  request.contrastive = std::make_unique<ContrastiveSearch>(sampling.penalty_alpha, width);
  trunk.task.candidates = width;
  trunk.ends_at = std::min<int64_t>(trunk.ends_at, options_.hidden_rows - width);
  trunk.most_tokens = static_cast<int>(trunk.ends_at);
  trunk.speculates = trunk.jumps = false;
}

// Rows for hidden states that it needs, beside those that it has.
int Scheduler::hidden_rows_of(const RequestState& request) {
  if (!request.contrastive || !request.hidden.rows.empty()) return 0;
  return request.choices[0]->most_tokens + request.width();
}

// Takes note of the hidden states that a part has computed.
void Scheduler::note_hidden(const ScheduledBatch::Part& part) {
  RequestState& request = *part.sequence->request;
  HiddenText& hidden = request.hidden;
  if (hidden.rows.empty()) return;
  const int text = part.sequence->known() - (request.contrastive->begun() ? 1 : 0), end = part.first + part.tokens;
  hidden.known = std::max(hidden.known, std::min(end, text));
  if (end > text) hidden.candidates |= uint64_t{1} << part.sequence->task.choice;
}

// Gives back the rows of a request of which no sequence runs.
void Scheduler::release_hidden(RequestState& request) {
  const auto runs = [](const auto& choice) { return choice && choice->state == SequenceState::kRunning; };
  if (request.hidden.rows.empty() || std::ranges::any_of(request.choices, runs)) return;
  hidden_rows_.give_back(request.hidden.rows);
  request.hidden = {};
}

void Scheduler::commit_candidate(Sequence& sequence, const StepResult& result) {
  RequestState& request = *sequence.request;
  SampleResult& sampled = result.accepted[0];
  --sequence.unknown;
  // Nothing may come after a candidate that ends the text. Another one may still be chosen.
  if (!sampled.error.empty() && sampled.error != kAllMasked) {
    bad_logits_ |= sampled.bad_logits;
    return fail_contrastive(request, sampled.error);
  }
  ContrastiveSearch& search = *request.contrastive;
  const bool all = search.put(
      sequence.task.choice,
      {.similarity = result.similarity, .next = std::move(sampled.candidates), .top = std::move(sampled.logprobs.top)});
  if (!all) return;
  const int chosen = search.begun() ? search.choose() : 0;
  if (search.begun() && choose_candidate(request, chosen)) return end_contrastive(request);
  advance_contrastive(request, chosen);
}

// The candidate in the slot is the next token of the answer. Returns whether it is the last one.
bool Scheduler::choose_candidate(RequestState& request, int slot) {
  Sequence& sequence = *request.choices[static_cast<size_t>(slot)];
  HiddenText& hidden = request.hidden;
  const int text = sequence.known() - 1;
  if (hidden.known == text && (hidden.candidates >> slot & 1) != 0) {
    const int most_tokens = static_cast<int>(hidden.rows.size()) - request.width();
    std::swap(hidden.rows[static_cast<size_t>(text)], hidden.rows[static_cast<size_t>(most_tokens + slot)]);
    ++hidden.known;
  }
  hidden.candidates = 0;

  ++generated_tokens_;
  SequenceEvent& event = events_.emplace_back();
  event.request = request.id;
  event.admitted_at = request.choices[0]->admitted_at;
  event.tokens.push_back(sequence.tokens.back());
  event.finish = finish_of(sequence);
  event.usage = {.prompt_tokens = request.prompt_length(),
                 .cached_tokens = request.choices[0]->cached_tokens,
                 .completion_tokens = sequence.outputs()};
  event.preemptions = request.preemptions;
  const bool scored = !request.prompt_logprobs.empty();
  if (request.request.sampling.logprobs || scored) event.logprobs = std::make_unique<EventLogprobs>();
  if (request.request.sampling.logprobs) event.logprobs->tokens.push_back(request.contrastive->logprobs(slot));
  if (scored) event.logprobs->prompt = std::exchange(request.prompt_logprobs, {});
  const bool last = event.finish != nullptr;
  if (last && slot != 0) adopt(*request.choices[0], sequence);  // for the session
  return last;
}

// All slots go on with the text of one of them, each with another token.
void Scheduler::advance_contrastive(RequestState& request, int chosen) {
  const std::span<const TokenCandidate> next = request.contrastive->advance(chosen);
  if (next.empty()) return fail_contrastive(request, kAllMasked);
  if (request.unforked()) fork(*request.choices[0]);
  const auto slots = static_cast<int>(next.size());
  for (int slot = 0; slot < slots; ++slot) {
    if (slot != chosen)
      adopt(*request.choices[static_cast<size_t>(slot)], *request.choices[static_cast<size_t>(chosen)]);
  }
  for (int slot = 0; slot < slots; ++slot) {
    Sequence& candidate = *request.choices[static_cast<size_t>(slot)];
    const TokenId token = next[static_cast<size_t>(slot)].token.id;
    if (candidate.constraint && !candidate.constraint->accept(token)) return fail_contrastive(request, kNotAllowed);
    candidate.tokens.push_back(token);
    candidate.blocks_stable_until = 0;
    if (candidate.task.counts != nullptr) {
      candidate.counts.add_output(token);
      candidate.counts.slide(candidate.text(), candidate.prompt_length - candidate.given);
    }
    if (candidate.state == SequenceState::kParked) enqueue(candidate);
  }
  for (int slot = slots; slot < request.width(); ++slot) park(*request.choices[static_cast<size_t>(slot)]);
  ++running_set_;  // blocks have changed hands
}

void Scheduler::fail_contrastive(RequestState& request, std::string_view error) {
  Finish finish;
  finish.reason = FinishReason::kError;
  finish.message = error;
  end_request(request, finish);
}

void Scheduler::end_contrastive(RequestState& request) {
  for (const auto& choice : request.choices) {
    if (choice && choice->state != SequenceState::kEnded) end_sequence(*choice);
  }
}

}  // namespace sluice
