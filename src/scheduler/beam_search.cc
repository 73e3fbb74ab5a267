// One step of the search: candidates, those that end, those that go on, and whether to go on at all.
#include "scheduler/beam_search.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace sluice {

BeamSearch::BeamSearch(Options options) : options_(std::move(options)) {}

int BeamSearch::needed() const {
  const int ends = static_cast<int>(options_.end_tokens.size());
  return std::max(2, 1 + ends) * options_.params.width;
}

bool BeamSearch::is_end(TokenId token) const {
  return std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end();
}

bool BeamSearch::ends(const Beam& beam) const { return !beam.output.empty() && is_end(beam.output.back()); }

// The likeliest continuations of all beams together.
std::vector<BeamSearch::Candidate> BeamSearch::candidates(std::span<const TokenLogprobs> after) const {
  std::vector<Candidate> all;
  for (int slot = 0; slot < slots(); ++slot) {
    for (const TokenLogprob& token : after[static_cast<size_t>(slot)].top) {
      if (length_ <= options_.min_tokens && is_end(token.id)) continue;
      const double score = running_[static_cast<size_t>(slot)].score + static_cast<double>(token.logprob);
      all.push_back({.slot = slot, .token = &token, .score = score});
    }
  }
  std::ranges::stable_sort(all, std::greater<>(), &Candidate::score);
  if (static_cast<int>(all.size()) > needed()) all.resize(static_cast<size_t>(needed()));
  return all;
}

BeamSearch::Beam BeamSearch::extended(const Candidate& candidate, const TokenLogprobs& after) const {
  Beam beam = running_[static_cast<size_t>(candidate.slot)];
  beam.output.push_back(candidate.token->id);
  if (options_.keeps_logprobs) beam.logprobs.push_back({.token = *candidate.token, .top = after.top});
  beam.score = candidate.score;
  return beam;
}

void BeamSearch::finish(Beam beam) {
  beam.score /= std::pow(static_cast<double>(beam.output.size()), options_.params.length_penalty);
  const auto at = std::ranges::upper_bound(finished_, beam.score, std::greater<>(), &Beam::score);
  finished_.insert(at, std::move(beam));
  if (static_cast<int>(finished_.size()) > options_.params.width) finished_.pop_back();
}

// Whether a beam may still become better than the worst of the finished ones, as far as transformers' rules tell.
bool BeamSearch::may_improve(double best_running) const {
  const BeamParams& p = options_.params;
  if (static_cast<int>(finished_.size()) < p.width) return true;
  if (p.early_stopping == EarlyStopping::kYes) return false;
  const bool longest = p.early_stopping == EarlyStopping::kNever && p.length_penalty > 0;
  const double length = longest ? options_.most_tokens : length_;
  return best_running / std::pow(length, p.length_penalty) > finished_.back().score;
}

std::vector<BeamSearch::Move> BeamSearch::advance(std::span<const TokenLogprobs> after) {
  CHECK(after.size() == running_.size(), "tokens after {} of {} beams", after.size(), running_.size());
  ++length_;
  const bool last = length_ >= options_.most_tokens;
  const auto width = static_cast<size_t>(options_.params.width);
  std::vector<Candidate> kept;
  const std::vector<Candidate> all = candidates(after);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const bool ended = last || is_end(all[rank].token->id);
    if (!ended && kept.size() < width) kept.push_back(all[rank]);
    // An end counts only where it is among the best: the others are there for the beams that go on.
    if (ended && rank < width) finish(extended(all[rank], after[static_cast<size_t>(all[rank].slot)]));
  }
  if (kept.empty() || !may_improve(kept.front().score)) return {};
  return place(kept, after);
}

// Gives each kept candidate a slot, if possible its parent's.
std::vector<BeamSearch::Move> BeamSearch::place(const std::vector<Candidate>& kept,
                                                std::span<const TokenLogprobs> after) {
  std::vector<const Candidate*> in_slot(kept.size());
  std::vector<const Candidate*> homeless;
  for (const Candidate& one : kept) {
    const bool fits = one.slot < static_cast<int>(in_slot.size()) && in_slot[static_cast<size_t>(one.slot)] == nullptr;
    if (fits) {
      in_slot[static_cast<size_t>(one.slot)] = &one;
    } else {
      homeless.push_back(&one);
    }
  }
  auto next = homeless.begin();
  std::vector<Beam> beams;
  std::vector<Move> moves;
  for (size_t slot = 0; slot < in_slot.size(); ++slot) {
    const Candidate& one = in_slot[slot] != nullptr ? *in_slot[slot] : **next++;
    beams.push_back(extended(one, after[static_cast<size_t>(one.slot)]));
    moves.push_back({.slot = static_cast<int>(slot), .parent = one.slot, .token = one.token->id});
  }
  running_ = std::move(beams);
  return moves;
}

}  // namespace sluice
