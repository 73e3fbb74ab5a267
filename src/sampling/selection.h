// Selects tokens of one row of logits without sorting it. The cost is that of reading the row. The first pass, which
// every row needs, computes the maximum of each chunk; later passes skip chunks by it.
//
// Tokens are ordered by higher logit first, and by lower id among equal logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/request.h"

namespace sluice {

inline constexpr int kChunk = 64;  // logits

struct Candidate {
  float logit = 0.0f;
  float weight = 0.0f;  // exp((logit - the row's maximum) / temperature)
  TokenId id = 0;
};

inline bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

struct RowScan {
  float max = 0.0f;    // -infinity if every token is masked
  bool finite = true;  // the row has no NaN and no +infinity (-infinity masks a token)
};

// Computes the maximum of a row and of each of its chunks.
RowScan scan_row(std::span<const float> logits, std::vector<float>& chunk_max);

// Returns the first token in order; `scan` and `chunk_max` must be scan_row()'s for these logits.
TokenId argmax(std::span<const float> logits, const RowScan& scan, const std::vector<float>& chunk_max);

// Lists the tokens with logits >= threshold and > -infinity, sorted by id. Does not set weights.
void gather(std::span<const float> logits, const std::vector<float>& chunk_max, float threshold,
            std::vector<Candidate>& out);

// Lists the first k tokens in order, sorted by id; fewer if fewer are unmasked. Overwrites `scratch`.
void gather_top(std::span<const float> logits, const std::vector<float>& chunk_max, int k, std::vector<Candidate>& out,
                std::vector<Candidate>& scratch);

// Keeps the shortest prefix in order whose weights sum to at least `mass`, or all tokens if their sum is less. The list
// keeps its sequence.
void keep_nucleus(std::vector<Candidate>& candidates, double mass, std::vector<Candidate>& scratch);

// Returns exp((x - max) * scale) for x <= max and scale > 0, with a relative error below 2e-7; 0 below exp(-87).
float relative_weight(float x, float max, float scale);

// Computes the weights of a row, padded with zeros to whole chunks, and their sum per chunk. Returns the total.
double weigh_row(std::span<const float> logits, float max, float scale, std::vector<float>& weights,
                 std::vector<double>& chunk_sum);

// Returns the number of tokens before `token` in order.
int rank_before(std::span<const float> logits, TokenId token);

}  // namespace sluice
