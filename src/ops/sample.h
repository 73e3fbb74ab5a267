// Samples tokens from rows of logits on the device that computed them. The op returns tokens, and the numbers that
// log-probabilities are computed from, instead of whole rows.
//
// A row is edited and masked before it is sampled. Log-probabilities are those of the raw logits.
//
// The filters keep exactly the right tokens, however many these are. Tokens have a total order: higher logit
// first, and the lower id among equal logits. Sampling weights are integers, so their sums do not depend on the order
// in which a device adds them.
//
// To sample from softmax(scale * logits), the op takes the token with the largest scale * logit + Gumbel noise (Gumbel
// 1954; Maddison et al. 2014, arXiv:1411.0030). The noise of a token is a function of key, choice, position and token
// id. The result therefore does not depend on the order in which a device visits the row. All devices use the
// arithmetic of sample_math.h, so a seed gives the same tokens on all of them where the logits are equal.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "ops/sample_math.h"
#include "tensor/indices.h"
#include "tensor/tensor.h"

namespace sluice::ops {

// How to sample one token: plain data that the device reads.
struct SampleRow {
  int32_t row = 0;     // row of the logits
  float scale = 0.0f;  // 1 / temperature; 0: takes the largest logit without sampling
  uint32_t key[2] = {};
  uint32_t choice = 0, position = 0;
  // The filters of candidate tokens. They apply in the order top-n-sigma, top-k, top-p, min-p, each to what the one
  // before kept.
  // top-n-sigma, > 0: keeps logits of at least the largest one minus this many of the row's standard deviations (Tang
  // et al. 2024, arXiv:2411.07641)
  float sigmas = 0.0f;
  int32_t count = 0;   // top-k, > 0: keeps the first `count` tokens in order
  float least = 0.0f;  // min-p: keeps tokens of at least this weight, relative to the largest logit's weight of 1
  double mass = 1.0;   // top-p, < 1: keeps the shortest prefix in order that has at least this share of the weight

  // With steps > 0, the samplers in this range of SampleArgs::steps take the place of scale and filters.
  int32_t first_step = 0, steps = 0;
  int32_t wants_probability = 0;  // with steps: whether SampledRow::probability is asked for

  int32_t target = -1;                                         // >= 0: takes this token without sampling
  int32_t first_edit = 0, edits = 0;                           // range in SampleArgs::edits
  float repetition = 1.0f, presence = 0.0f, frequency = 0.0f;  // penalties, see LogitEdit
  int32_t mask = -1;                                           // index in SampleArgs::masks; -1 allows all tokens
  int32_t report = -1;  // >= 0: reports log-probability data for the token and for this many largest raw logits
};

// Whether a row has filters. They matter only if it samples.
constexpr bool filters(const SampleRow& row) {
  return row.sigmas > 0 || row.count > 0 || row.mass < 1 || row.least > 0;
}

// How one token's logit changes before sampling. First the bias is added. Next, if penalties apply to the token, a
// positive logit is divided by `repetition` and any other is multiplied by it. Then, if the token occurs in the output,
// frequency * output + presence is subtracted. Last, `late` is subtracted.
struct LogitEdit {
  int32_t id = 0;       // token; at most once among a row's edits
  float bias = 0.0f;    // -infinity excludes the token
  int32_t output = -1;  // occurrences in the output; 0: occurs in the prompt only; -1: no penalties
  float late = 0.0f;
  float raw = 0.0f;  // the raw logit; only the op uses this field
};

// Returns a logit after its edit.
SLUICE_SAMPLE_MATH float edited(const SampleRow& row, const LogitEdit& edit, float logit) {
  logit += edit.bias;
  if (edit.output >= 0) logit = logit > 0.0f ? logit / row.repetition : times(logit, row.repetition);
  if (edit.output > 0) logit -= times(row.frequency, static_cast<float>(edit.output)) + row.presence;
  return logit - edit.late;
}

// One of the largest logits.
struct TopLogit {
  int32_t id = 0;
  float logit = 0.0f;
};

// The order of tokens.
inline bool before(const TopLogit& a, const TopLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

inline constexpr int kMostTop = 512;  // most TopLogits listed for one sample

// The result for one SampleRow: plain data that the device writes.
struct SampledRow {
  static constexpr int32_t kBadLogits = -1;  // a raw logit is NaN or +infinity, or all are -infinity
  static constexpr int32_t kNoneLeft = -2;   // the same of the logits after edits and mask
  // The sampled token, the target, or without sampling the lowest id with the largest logit; or an error from above.
  int32_t token = kBadLogits;
  float probability =
      0.0f;  // of the token among those that the chain left, if SampleRow::wants_probability asks for it

  // Numbers of the raw logits, set if SampleRow::report asks for them:
  float raw_max = 0.0f;
  float raw_total = 0.0f;  // sum of exp(logit - raw_max)
  float token_logit = 0.0f;
  int32_t before = 0;  // number of tokens that come first in the order: larger logit, or equal logit and lower id
  int32_t top = 0;     // entries in SampleArgs::top, unordered, at least as many as asked for; -1: more than kMostTop
};

// Arguments of the op. A sample is one SampleRow.
struct SampleArgs {
  Tensor logits;    // [rows, vocabulary] fp32; the op changes and then restores rows of samples with edits, so such a
                    // row must belong to one sample only
  Tensor rows;      // bytes of SampleRow [samples] in pinned memory; the op uses the values at the time of the call
  Tensor sampled;   // out: bytes of SampledRow [samples]
  Tensor for_host;  // out: a copy of `sampled` in pinned memory; may be empty
  // These may be empty if no row asks for them:
  Tensor edits;  // in, out: bytes of LogitEdit
  Tensor steps;  // bytes of SamplerStep (ops/sample_chain.h)
  Tensor masks;  // uint32 [masks, mask_words(vocabulary)] as bytes; bit id % 32 of word id / 32 allows token id
  Tensor top;    // out: bytes of TopLogit [samples, kMostTop]
};

constexpr int64_t mask_words(int64_t vocabulary) { return (vocabulary + 31) / 32; }

// Copies the tokens that a step sampled to the inputs of the next step, before the host has seen them.
struct FeedSampledArgs {
  Tensor tokens;   // [rows] int32, in and out
  Tensor sampled;  // bytes of SampledRow [samples]
  Indices from;    // [rows] index of the sample that gives the row's token (0 if it failed); -1 keeps the token
};

// Returns the random bits for the noise of token ids 4 * block .. 4 * block + 3. The last word of the counter separates
// them from other random numbers with the same key.
constexpr std::array<uint32_t, 4> sample_bits(const SampleRow& row, uint32_t block) {
  return philox4x32({row.position, row.choice, block, 2}, {row.key[0], row.key[1]});
}

// Devices find the largest logits with a histogram: bins of equal width below the maximum.
inline constexpr int kLogitBins = 2048;
inline constexpr float kBinsPerLogit = 32.0f;
SLUICE_SAMPLE_MATH int logit_bin(float max, float logit) {
  const float bin = (max - logit) * kBinsPerLogit;
  return bin < static_cast<float>(kLogitBins - 1) ? static_cast<int>(bin) : kLogitBins - 1;
}

}  // namespace sluice::ops
