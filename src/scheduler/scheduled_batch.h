// A step as the scheduler hands it out, and what comes back for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/batch.h"
#include "batch/sample_task.h"

namespace sluice {

struct Sequence;

// What a sequence gets from a step.
enum class Outputs : uint8_t {
  kNone,    // nothing: its keys and values are computed
  kToken,   // one sampled token
  kScores,  // log-probabilities of prompt tokens, but no token yet
  kFork,    // one sampled token for each choice of its request
  kVector,  // the vector of its prompt
  kVerify,  // one token more than the accepted ones of its draft: 1 .. drafted + 1
};

struct ScheduledBatch {
  Batch batch;
  // What to sample and score. SampleTask::row is an index into batch.sample_rows, thus a row of the logits. Several
  // tasks may share a row (kFork). The tasks point into the scheduler and are valid until commit.
  std::vector<SampleTask> tasks;

  // The share of one sequence. Its tasks are `scores` scored prompt tokens, then `samples` sampled tokens.
  struct Part {
    Sequence* sequence = nullptr;
    int first = 0, tokens = 0;  // positions
    Outputs outputs = Outputs::kNone;
    int first_task = 0;
    int scores = 0;             // also before the token of kToken and kFork, at the end of a scored prompt
    int samples = 0;            // kToken: 1; kFork: choices; kVerify: drafted tokens and one more
    bool later = false;         // kVerify: the draft's tokens were left open when the step was made
    int module = -1;            // the part of a module's tokens (prompt_modules.h); -1: of the sequence's text
    bool after_unseen = false;  // the token before `first` is one that the draft model made, but did not compute

    int drafted() const { return outputs == Outputs::kVerify ? samples - 1 : 0; }
  };
  // One per sequence of the batch, in the batch's order. What a step has of a sequence is one part, or one for each of
  // its modules.
  std::vector<Part> parts;
  uint64_t number = 0;  // counts steps, from 1
  uint64_t set = 0;     // generation of the running set if this step decodes one token for all of it, else 0

  void clear();  // makes it a new one, but keeps the memory of its lists
  // Drops the last `dropped` drafted tokens of each part, and their tasks.
  void drop_drafted(std::span<const int> dropped);
};

// The result of one part: spans of the sampler's results, which commit() moves from.
struct StepResult {
  std::span<SampleResult> scores;    // one per scored prompt token
  std::span<SampleResult> accepted;  // tokens in order; kFork: one per choice. One with an error is the last one.
  std::vector<float> vector{};       // for kVector
  float similarity = 0.0f;           // of a candidate of a contrastive search
};

// Divides the sampler's results, one per task, among the parts. A token of kVerify is accepted when all tokens sampled
// before it are those that the draft had in their places. The text is then the same as without a draft, as every token
// is sampled with the seed and the position it would have without one.
std::vector<StepResult> step_results(const ScheduledBatch& step, std::span<SampleResult> results);

}  // namespace sluice
