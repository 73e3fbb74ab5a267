// The model of the simulation: it answers from what the paged cache holds, and clients can foretell its answers. The
// state of a sequence is a hash of its tokens. The cache keeps it for every position, and the next one is computed from
// what the cache holds. A wrong slot, block table, copy or reuse of a block therefore changes the answer.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sluice/request.h"

namespace sluice::simulation {

inline constexpr TokenId kEndToken = 256;  // ids below it are bytes
inline constexpr int kVocabulary = 258;

// What the model answers to a prompt: at most `most` tokens, without the end token. `ended` says whether the model
// ended it. With `past_end`, end tokens do not end it, and they add nothing to the text.
struct Answer {
  std::string text;
  int tokens = 0;  // the end token included
  bool ended = false;
};
Answer answer_to(std::span<const TokenId> prompt, int most, bool past_end);

// Writes the files of a checkpoint of the model into the folder.
void write_model_files(const std::string& folder, int max_positions);

// How long the model takes.
struct Pace {
  int64_t per_step = 0, per_token = 0;  // nanoseconds of the machine's clock
};
void set_pace(const Pace& pace);

}  // namespace sluice::simulation
