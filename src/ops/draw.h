// Drawing tokens from rows of logits where these lie: the op sends back a token, or the few candidates that the host
// needs to finish, instead of whole rows.
//
// A draw from softmax(scale * logits) takes the token of the largest scale * logit + Gumbel noise (Gumbel 1954;
// Maddison et al. 2014, arXiv:1411.0030). The noise of a token is a function of key, choice, position and the token's
// id, so that a draw does not depend on the order in which a device looks at the row.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/philox.h"
#include "ops/indices.h"
#include "tensor/tensor.h"

namespace sluice::ops {

// Plain data that the device reads.
struct DrawRow {
  int32_t row = 0;     // of the logits
  float scale = 0.0f;  // 1 / temperature; 0: no draw, the largest logit
  uint32_t key[2] = {};
  uint32_t choice = 0, position = 0;
  // Which tokens are candidates. All zero: none, the op draws. Else, and only one of these:
  int32_t count = 0;   // those of the `count` largest logits
  float mass = 0.0f;   // the largest ones that hold at least this share of the row's weight (1: all)
  float below = 0.0f;  // those whose logit is at most that far below the largest one
};

struct DrawCandidate {
  int32_t id = 0;
  float logit = 0.0f;
};

inline constexpr int kMostCandidates = 512;

// And writes.
struct DrawnRow {
  int32_t token = -1;  // the draw, or the largest logit's lowest id; -1: the logits are NaN, +infinity or all masked
  int32_t candidates = 0;  // listed, in any order; a few more than asked for, never fewer
  int32_t listed = 1;      // 0: there are more than kMostCandidates, none is listed
  float max = 0.0f;        // of the logits
  float total = 0.0f;      // sum of exp(scale * (logit - max)), where candidates are asked for
};

struct DrawArgs {
  Tensor logits;      // [rows, vocabulary] fp32
  Tensor rows;        // bytes of DrawRow [draws]
  Tensor drawn;       // out: bytes of DrawnRow [draws]
  Tensor candidates;  // out: bytes of DrawCandidate [draws, kMostCandidates]
};

// Puts the tokens that a step drew into the inputs of the next one, before the host has seen them.
struct TakeDrawnArgs {
  Tensor tokens;  // [rows] int32, in and out
  Tensor drawn;   // bytes of DrawnRow [draws]
  Indices from;   // [rows] the draw that gives the row's token, 0 where it failed; -1: the token stays
};

// Uniform in (0, 1) of a token's lane in a block of four ids.
constexpr float open_uniform(uint32_t bits) { return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f; }

// The noise of ids 4 * block .. 4 * block + 3 comes from one call; the last word of the counter keeps it apart from
// other draws of the same key.
constexpr std::array<uint32_t, 4> draw_bits(const DrawRow& row, uint32_t block) {
  return philox4x32({row.position, row.choice, block, 2}, {row.key[0], row.key[1]});
}

// Candidates are found by bins of equal width below the maximum.
inline constexpr int kDrawBins = 2048;
inline constexpr float kDrawBinsPerLogit = 32.0f;

}  // namespace sluice::ops
