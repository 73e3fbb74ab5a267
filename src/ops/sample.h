// Drawing tokens from rows of logits where these lie: the op sends back tokens instead of whole rows, and what
// log-probabilities are made of.
//
// A row is drawn from after its edits and its mask. Log-probabilities are of the raw logits.
//
// What top-k, top-p and min-p keep is exact, however many tokens that are: tokens have an order (higher logit first,
// among equal ones the lower id), and weights of draws are integers, whose sums do not depend on the order in which a
// device adds them up.
//
// A draw from softmax(scale * logits) takes the token of the largest scale * logit + Gumbel noise (Gumbel 1954;
// Maddison et al. 2014, arXiv:1411.0030). The noise of a token is a function of key, choice, position and the token's
// id, so that a draw does not depend on the order in which a device looks at the row.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/philox.h"
#include "tensor/indices.h"
#include "tensor/tensor.h"

namespace sluice::ops {

// Plain data that the device reads.
struct SampleRow {
  int32_t row = 0;     // of the logits
  float scale = 0.0f;  // 1 / temperature; 0: no draw, the largest logit
  uint32_t key[2] = {};
  uint32_t choice = 0, position = 0;
  // Which tokens a draw keeps, each of these of what the one before has kept:
  int32_t count = 0;   // > 0: the first so many in order (top-k)
  float least = 0.0f;  // those of at least this weight, the largest logit's being 1 (min-p); the last of the three
  double mass = 1.0;   // < 1: the shortest prefix in order that holds at least this share of the weight (top-p)

  int32_t target = -1;                                         // >= 0: this token instead of a draw
  int32_t first_edit = 0, edits = 0;                           // of SampleArgs::edits
  float repetition = 1.0f, presence = 0.0f, frequency = 0.0f;  // penalties, see LogitEdit
  int32_t mask = -1;                                           // of SampleArgs::masks; -1: all tokens may be drawn
  int32_t report = -1;  // >= 0: what log-probabilities need, of the token and of so many of the largest raw logits
};

// What becomes of a token's logit: first the bias is added; then, where the token is one that penalties are for, it is
// divided by `repetition` if positive, else multiplied; then, where it is in the output, frequency * output + presence
// is taken off.
struct LogitEdit {
  int32_t id = 0;       // each at most once among a row's edits
  float bias = 0.0f;    // -infinity: cannot be drawn
  int32_t output = -1;  // occurrences in the output; 0: the prompt alone has it; -1: no penalties
  float raw = 0.0f;     // the op's own
};

// One of the largest logits.
struct TopLogit {
  int32_t id = 0;
  float logit = 0.0f;
};

inline constexpr int kMostTop = 512;

// And writes.
struct SampledRow {
  // The draw, or the largest logit's lowest id, or the target.
  static constexpr int32_t kBadLogits = -1;  // the raw ones are NaN, +infinity or all -infinity
  static constexpr int32_t kNoneLeft = -2;   // after edits and mask they are
  int32_t token = kBadLogits;

  // Of the raw logits, where asked for:
  float raw_max = 0.0f;
  float raw_total = 0.0f;  // sum of exp(logit - raw_max)
  float token_logit = 0.0f;
  int32_t before = 0;  // tokens of larger logits, or of equal ones and lower ids
  int32_t top = 0;     // listed in `top`, in any order, never fewer than asked for; -1: more than kMostTop
};

struct SampleArgs {
  Tensor logits;    // [rows, vocabulary] fp32; rows of draws with edits are written, and as they were in the end, so
                    // that each must be the row of that draw alone
  Tensor rows;      // bytes of SampleRow [draws], in the backend's staging memory, as they are when the op is called
  Tensor sampled;   // out: bytes of SampledRow [draws]
  Tensor for_host;  // out: the same in staging memory; may be empty
  // May be empty where no row asks for them:
  Tensor edits;  // in, out: bytes of LogitEdit
  Tensor masks;  // uint32 [masks, mask_words(vocabulary)] as bytes; bit id % 32 of word id / 32: the token may be drawn
  Tensor top;    // out: bytes of TopLogit [draws, kMostTop]
};

constexpr int64_t mask_words(int64_t vocabulary) { return (vocabulary + 31) / 32; }

// Puts the tokens that a step drew into the inputs of the next one, before the host has seen them.
struct FeedSampledArgs {
  Tensor tokens;   // [rows] int32, in and out
  Tensor sampled;  // bytes of SampledRow [draws]
  Indices from;    // [rows] the draw that gives the row's token, 0 where it failed; -1: the token stays
};

// Uniform in (0, 1) of a token's lane in a block of four ids.
constexpr float open_uniform(uint32_t bits) { return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f; }

// The noise of ids 4 * block .. 4 * block + 3 comes from one call; the last word of the counter keeps it apart from
// other draws of the same key.
constexpr std::array<uint32_t, 4> sample_bits(const SampleRow& row, uint32_t block) {
  return philox4x32({row.position, row.choice, block, 2}, {row.key[0], row.key[1]});
}

// The weight of a token, exp(scale * (logit - max)), in units that leave room for the sum of 2^20 of them.
inline constexpr double kSampleWeightUnits = 0x1p43;

// The largest logits are found by bins of equal width below the maximum.
inline constexpr int kLogitBins = 2048;
inline constexpr float kBinsPerLogit = 32.0f;

}  // namespace sluice::ops
