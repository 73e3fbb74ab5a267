// Sampling on CPUs: the part that is compiled once. It selects the tokens that the filters keep. Loops over whole rows
// are compiled per instruction set (kernels/cpu/sample.cc) and called through a table.
//
// A row is read in chunks. The first pass, which every row needs, computes the maximum of each chunk; later passes skip
// chunks by it.
#pragma once

#include <cstdint>

#include "ops/ops.h"
#include "ops/sample_chain.h"

namespace sluice::kernels {

inline constexpr int kSampleChunk = 64;  // logits

// A row of logits as whole chunks. The last one is a copy that -infinity fills up, unless the row ends with a chunk.
struct ChunkedRow {
  const float* logits = nullptr;
  const float* last = nullptr;
  int64_t whole = 0, chunks = 0;  // `whole` chunks are read in place
  int64_t vocab = 0;

  const float* chunk(int64_t i) const { return i < whole ? logits + i * kSampleChunk : last; }
};

// What the filters of a row keep: tokens up to (logit, id) in order that have at least the weight `least`.
struct Cut {
  float logit = -__builtin_inff();
  int32_t id = INT32_MAX;
  float least = 0.0f;
};

struct SampleCandidate {
  float logit;
  int32_t id;
  uint64_t units;  // weight
};

// A row to sample from, its chunks' maxima, and the first token in order.
struct SampleInput {
  const ops::SampleRow* row;
  ChunkedRow logits;
  const float* chunk_max;
  float max;
  int32_t argmax;
};

// Loops of one instruction set. Results do not depend on it, except for sums of floats.
struct SampleLoops {
  // Computes the maxima of chunks. Returns whether no logit is NaN or +infinity.
  bool (*chunk_maxima)(const ChunkedRow& row, float* chunk_max);
  // Returns the sum of exp(logit - max).
  double (*total)(const ChunkedRow& row, float max);
  // Returns the sum of the row's weights in units, for SampleRow::scale.
  uint64_t (*units)(const SampleInput& in);
  // Sets the candidates' units.
  void (*weigh)(const SampleInput& in, SampleCandidate* candidates, int64_t count);
  // Sets the weights of tokens from their distances.
  void (*weigh_tokens)(ops::SampleToken* tokens, int64_t count);
  // Returns the number of logits above a value.
  int64_t (*count_above)(const ChunkedRow& row, float value);
  ops::LogitSums (*logit_sums)(const SampleInput& in);
  // Samples among the kept tokens. `chunk_weights` is scratch for a float per chunk.
  int32_t (*sample)(const SampleInput& in, const Cut& cut, float* chunk_weights);
};

void sample(ops::Queue& queue, const ops::SampleArgs& args, const SampleLoops& loops);

}  // namespace sluice::kernels
