// Selections over one row of logits without sorting it. Bound by reading the row: chunk maxima, taken in the one pass
// that every row gets anyway, tell later passes which chunks they may skip.
//
// The order of tokens is everywhere: higher logit first, among equal ones the lower id.
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
  float max = 0.0f;    // -infinity: every token is masked
  bool finite = true;  // no NaN, no +infinity (-infinity is a mask)
};

// Maximum of a row and of each of its chunks.
RowScan scan_row(std::span<const float> logits, std::vector<float>& chunk_max);

// The first token in order; logits and maxima as scan_row() saw them.
TokenId argmax(std::span<const float> logits, const RowScan& scan, const std::vector<float>& chunk_max);

// Tokens with logits >= threshold and > -infinity, by id. Weights are not set.
void gather(std::span<const float> logits, const std::vector<float>& chunk_max, float threshold,
            std::vector<Candidate>& out);

// The first k tokens in order, listed by id; fewer when fewer are not masked. `scratch` is overwritten.
void gather_top(std::span<const float> logits, const std::vector<float>& chunk_max, int k, std::vector<Candidate>& out,
                std::vector<Candidate>& scratch);

// Keeps the shortest prefix in order whose weights sum to at least `mass`, all when they do not; listed as before.
void keep_nucleus(std::vector<Candidate>& candidates, double mass, std::vector<Candidate>& scratch);

// exp((x - max) * scale) for x <= max and scale > 0, relative error below 2e-7; 0 below exp(-87).
float relative_weight(float x, float max, float scale);

// Weights of a row, filled up with zeros to whole chunks, and their sum per chunk. Returns the total.
double weigh_row(std::span<const float> logits, float max, float scale, std::vector<float>& weights,
                 std::vector<double>& chunk_sum);

// Tokens before `token` in order.
int rank_before(std::span<const float> logits, TokenId token);

}  // namespace sluice
