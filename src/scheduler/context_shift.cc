// Answers that are longer than the context. Keys and values depend on all tokens before them, and in many models on
// their positions in ways that cannot be undone. So what is left is computed again through the usual path: it is what
// the model makes of a text that somebody has cut, whatever the model. The kept head comes from the prefix cache. The
// first token that is left becomes the sink of attention (Xiao et al. 2023, arXiv:2309.17453), as in any text.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace sluice {

// Drops half of what may go, the oldest tokens, as llama.cpp does. Penalties and samplers see what is left. Grammar,
// seed, and the number of tokens go on.
void Scheduler::shift_context(Sequence& sequence) {
  const int prompt = sequence.prompt_length;
  int keep = sequence.request->request.context_keep.value_or(options_.context_keep);
  if (keep < 0) keep = sequence.request->prompt_length();
  keep = std::min(keep, most_kept(options_));
  const int dropped = (sequence.known() - keep) / 2, of_prompt = std::clamp(prompt - keep, 0, dropped);

  const bool runs = sequence.state == SequenceState::kRunning;  // else it was preempted while its step was in flight
  if (runs) stop_running(sequence);
  sequence.memory.release(pools_);
  sequence.memory.hashes.resize(
      std::min(sequence.memory.hashes.size(), static_cast<size_t>(keep / options_.block_size)));
  sequence.memory.snapshot_at = 0;
  sequence.computed = 0;
  sequence.unseen = false;
  sequence.blocks_stable_until = 0;

  const auto first = sequence.tokens.begin() + keep;
  sequence.tokens.erase(first, first + dropped);
  sequence.prompt_length -= of_prompt;
  sequence.dropped_output += dropped - of_prompt;
  sequence.ends_at -= dropped;
  sequence.most_tokens = static_cast<int>(std::min<int64_t>(sequence.ends_at, options_.max_model_len));
  if (sequence.task.tokens != nullptr) sequence.task.prompt_length = sequence.prompt_length;
  if (sequence.task.counts != nullptr) {
    const std::span<const TokenId> text = sequence.tokens;
    sequence.counts = PenaltyCounts(sequence.task.params->repeat_last_n);
    sequence.counts.add_prompt(text.first(static_cast<size_t>(sequence.prompt_length)));
    for (size_t known = static_cast<size_t>(sequence.prompt_length); known < text.size(); ++known) {
      sequence.counts.add_output(text[known]);
      sequence.counts.slide(text.first(known + 1), sequence.prompt_length);
    }
  }
  ++sequence.shifts;
  ++context_shifts_;
  if (runs) enqueue(sequence);
}

}  // namespace sluice
